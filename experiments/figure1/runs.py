"""Figure 1 (arXiv:1811.06965v5): accuracy and translation quality against parameters.

The translation models are those of Figure 3, whose runs both figures read.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments.learned import LEARN, PAPER_CUTS, VALIDATIONS, Arm, groups_of, recompute, to_rest
from repro.data.registry import DATA
from repro.harness.about import read_about
from repro.harness.spec import (
    ON_CPU,
    TINY,
    UNLIMITED_MEMORY,
    Experiment,
    Group,
    RunSpec,
    Scale,
    Training,
    sweep,
)
from repro.train.recipe import Recipe, imagenet

NAME = "figure1"
# Controls: training labels that are shuffled in a share of the classes, which flattens the law, and
# in all of them, of which no width learns anything.
SHUFFLED = 0.3
NOISE_WIDTHS = (8, 16)
# Filters D -> learning rates. A first tuning, with a rate that fell more slowly, had its best here.
TRIED = {8: (0.0025, 0.005, 0.01), 12: (0.005, 0.01, 0.02)}
TRIED |= {16: TRIED[8], 24: TRIED[12]}
SMALL: dict[str, Any] = {"L": 3, "image": 16, "bn_momentum": 0.1}  # AmoebaNet-B on a CPU
_IMAGES = DATA["imagenet"].examples[0]
PARTS = (1, 2, 4)  # of the updates at scale overnight: all, a half, a quarter
ABOUT = read_about(__file__)


class Sizes(NamedTuple):
    rates: dict[int, float]  # filters D of AmoebaNet-B -> learning rate, chosen by the tuning runs
    N: int
    steps: int
    parts: tuple[int, ...] = (1,)  # of the updates, each a training of its own


# The paper trained (18, 512) for 100 epochs; its other points are from other papers.
SIZES_OF: dict[Scale, Sizes] = {
    "smoke": Sizes({8: 0.005, 16: 0.005}, 32, 4),
    "laptop": Sizes({8: 0.01, 12: 0.01, 16: 0.01, 24: 0.01}, 64, 600),
    "overnight": Sizes({8: 0.005, 12: 0.01, 16: 0.005, 24: 0.01}, 64, 2000, PARTS),
    "paper": Sizes(dict.fromkeys((64, 128, 256, 512), 0.0), 256, 100 * _IMAGES // 256),
}
SIZES_OF["node"] = SIZES_OF["paper"]


def arm_of(D: int, part: int = 1, shuffled: float = 0.0) -> str:
    updates = f", 1/{part} of the updates" * (part > 1)
    return f"D={D}{updates}{f', {shuffled:.0%} shuffled' * (shuffled > 0)}"


def arms(scale: Scale) -> Iterator[Arm]:
    """A model for each width and share of the updates, and those of the control."""
    of = SIZES_OF[scale]
    if scale not in ON_CPU:
        recipe, flips = imagenet(of.N, _IMAGES).model_dump(), {"augment": "flip"}
        training = Training(data=("imagenet",), data_args=flips, recipe=recipe)
        for D in of.rates:
            yield Arm(_run(scale, arm_of(D), D, of.steps, training))
        return
    for D, rate in of.rates.items():
        for part in of.parts:
            steps = of.steps // part
            run = _run(scale, arm_of(D, part), D, steps, small_training("glyphs", {}, steps))
            yield Arm(run, rate, TRIED[D] if part == 1 else ())
            controls = [SHUFFLED] * (part == 1)
            controls += [1.0] * (part == of.parts[-1] and D in NOISE_WIDTHS)
            for share in controls:
                shuffled = small_training("glyphs", {"shuffled": share}, steps)
                yield Arm(_run(scale, arm_of(D, 1, share), D, steps, shuffled), rate)


def small_training(data: str, data_args: dict[str, Any], steps: int, rate: float = 1.0) -> Training:
    """Of an AmoebaNet-B on a CPU; a rate of 1 stands for that of the arm."""
    recipe = to_rest(Recipe(lr=rate, optimizer="adam"), steps).model_dump()
    validations = min(VALIDATIONS, steps)
    return Training(data=(data,), data_args=data_args, recipe=recipe, validations=validations)


def _run(scale: Scale, arm: str, D: int, steps: int, training: Training) -> RunSpec:
    on_cpu = scale in ON_CPU
    size = {**SMALL, "num_classes": 300} if on_cpu else {"L": 18, "image": 480}
    return RunSpec(
        **LEARN,
        model="amoebanet-b",
        model_args={**size, "D": D},
        K=1 if on_cpu else 4,
        M=1 if on_cpu else 32,
        N=SIZES_OF[scale].N,
        steps=steps,
        checkpoint=recompute(scale),
        training=training.model_copy(update={"arm": arm}),
    )


def experiment(scale: Scale = "laptop") -> Experiment:
    """Accuracy of AmoebaNet-B for four widths.

    Paper: section 1, Figure 1. (a) Top-1 on ImageNet of eight published models against their
    parameters; AmoebaNet-B (18, 512) with 557M reaches 84.4 %. (b) Average BLEU of five
    multilingual models of 0.4 to 6 billion parameters. Read off the picture.
    """
    on_cpu = scale in ON_CPU
    counts = () if scale in TINY else (Group(name="counts", runs=_counts()),)
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 1",
        neurips="Figure 1",
        needs="any machine" if on_cpu else "16 GPUs, ImageNet and OPUS-100",
        minutes={"smoke": 0.4, "laptop": 4.6, "overnight": 125},
        rounds=1,
        groups=(*groups_of(scale, [*arms(scale)]), *counts),
    )


def _counts() -> tuple[RunSpec, ...]:
    alike: dict[str, Any] = {"task": "fit", "fidelity": "counted", "balance": "memory", "K": 1}
    alike |= {"M": 1, "N": 1, "memory": UNLIMITED_MEMORY}
    sizes = [{**size._asdict(), "d": 1024, "V": 64000} for size, _ in PAPER_CUTS]
    images = RunSpec(model="amoebanet-b", model_args={"L": 18, "D": 512}, **alike)
    return (images, *sweep(model="translation", model_args=sizes, **alike))
