"""Figure 1 (arXiv:1811.06965v5): accuracy and translation quality against parameters.

The translation models are those of Figure 3, whose runs both figures read.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from repro.data.registry import DATA
from repro.experiments.learned import (
    BRIEF,
    LEARN,
    PAPER_CUTS,
    RATES,
    SMALL,
    Arm,
    groups_of,
    large_training,
    recompute,
    small_training,
)
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, UNLIMITED_MEMORY, Experiment, Group, RunSpec, Scale, sweep

NAME = "figure1"
# Controls: training labels that are shuffled in a share of the classes, which flattens the law, and
# in all of them, of which no width learns anything.
SHUFFLED = 0.3
NOISE_WIDTHS = (8, 16)
# Filters D -> learning rates. A first tuning, with a rate that fell more slowly, had its best here.
TRIED = {8: (0.0025, 0.005, 0.01), 12: (0.005, 0.01, 0.02)}
TRIED |= {16: TRIED[8], 24: TRIED[12]}
PARTS = (1, 2, 4)  # of the updates at scale overnight: all, a half, a quarter
ABOUT = read_about(__file__)


class Sizes(NamedTuple):
    N: int
    steps: int
    widths: tuple[int, ...]  # filters D of AmoebaNet-B
    parts: tuple[int, ...] = (1,)  # of the updates, each a training of its own


SIZES_OF: dict[Scale, Sizes] = {
    **dict.fromkeys(BRIEF, Sizes(32, 4, (8,))),
    "overnight": Sizes(64, 2000, (8, 12, 16, 24), PARTS),
    # The paper trained (18, 512) for 100 epochs; its other points are from other papers.
    "paper": Sizes(256, 100 * DATA["imagenet"].examples[0] // 256, (64, 128, 256, 512)),
}
SIZES_OF["node"] = SIZES_OF["paper"]


def arm_of(D: int, part: int = 1, shuffled: float = 0.0) -> str:
    updates = f", 1/{part} of the updates" * (part > 1)
    return f"D={D}{updates}{f', {shuffled:.0%} shuffled' * (shuffled > 0)}"


def arms(scale: Scale) -> Iterator[Arm]:
    """A model for each width and share of the updates, and on a CPU those of the control."""
    of, on_cpu = SIZES_OF[scale], scale in ON_CPU
    for D in of.widths:
        rate = RATES[D] if on_cpu else None
        for part in of.parts:
            tried = TRIED[D] if on_cpu and part == 1 else ()
            yield Arm(_run(scale, arm_of(D, part), D, part), rate, tried)
            controls = [SHUFFLED] * (on_cpu and part == 1)
            controls += [1.0] * (on_cpu and part == of.parts[-1] and D in NOISE_WIDTHS)
            for share in controls:
                yield Arm(_run(scale, arm_of(D, 1, share), D, part, {"shuffled": share}), rate)


def _run(
    scale: Scale, arm: str, D: int, part: int, data_args: dict[str, Any] | None = None
) -> RunSpec:
    of, on_cpu = SIZES_OF[scale], scale in ON_CPU
    steps = of.steps // part
    size: dict[str, Any] = {"L": 18, "image": 480}
    training = large_training("imagenet", "flip", of.N)
    if on_cpu:
        size = {**SMALL, "num_classes": 300}
        training = small_training("glyphs", data_args or {}, steps)
    return RunSpec(
        **LEARN,
        model="amoebanet-b",
        model_args={**size, "D": D},
        K=1 if on_cpu else 4,
        M=1 if on_cpu else 32,
        N=of.N,
        steps=steps,
        recompute=recompute(scale),
        training=training.model_copy(update={"arm": arm}),
    )


def experiment(scale: Scale = "laptop") -> Experiment:
    """Accuracy of AmoebaNet-B for four widths."""
    on_cpu = scale in ON_CPU
    counts = () if scale == "smoke" else (Group(name="counts", runs=_counts(), first=True),)
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 1",
        neurips="Figure 1",
        needs="any machine" if on_cpu else "16 GPUs, ImageNet and OPUS-100",
        minutes={"smoke": 0.2, "laptop": 0.3, "overnight": 125},
        rounds=1,
        groups=(*groups_of(scale, [*arms(scale)]), *counts),
    )


def _counts() -> tuple[RunSpec, ...]:
    alike: dict[str, Any] = {"task": "fit", "fidelity": "counted", "balance": "memory", "K": 1}
    alike |= {"M": 1, "N": 1, "memory": UNLIMITED_MEMORY}
    sizes = [{**size._asdict(), "d": 1024, "V": 64000} for size, _ in PAPER_CUTS]
    images = RunSpec(model="amoebanet-b", model_args={"L": 18, "D": 512}, **alike)
    return (images, *sweep(model="translation", model_args=sizes, **alike))
