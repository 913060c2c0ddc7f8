"""Figure 3 (arXiv:1811.06965v5): multilingual translation against bilingual baselines."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

from repro.experiments.learned import (
    BRIEF,
    HALF,
    OPUS,
    ORDER,
    PAPER_CUTS,
    SIZES,
    TOY,
    TRANSFORMER_BIG,
    Arm,
    beside,
    groups_of,
    training_run,
)
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, Scale

NAME = "figure3"
PAPER_M = 64  # so that a micro-batch of 2048 sentences has 32; the paper does not state it
ABOUT = read_about(__file__)


class Sizes(NamedTuple):
    N: int
    steps: int  # updates of the multilingual models
    own_steps: int  # and of each baseline
    decoded: int


SIZES_OF: dict[Scale, Sizes] = {
    **dict.fromkeys(BRIEF, Sizes(8, 3, 3, 4)),
    "overnight": Sizes(32, 2500, 2000, 500),
    "paper": Sizes(2048, 500_000, 100_000, 500),
}
SIZES_OF["node"] = SIZES_OF["paper"]
PAIRS: dict[str, Any] = {"misaligned": 0.1}
# Chosen by tuning, with those beside: for each size, and each language's baseline with its dropout.
RATES = (0.008, 0.008, 0.004, 0.004)
DROPOUTS = (0.1, 0.3, 0.5)  # up to the one above the chosen
BASELINES = ((0.1, 0.008), (0.1, 0.008), (0.1, 0.008), (0.3, 0.004), (0.3, 0.004), (0.3, 0.0005))


def alone(language: str) -> str:
    """The baseline of a language."""
    return f"{language} alone"


def arms(scale: Scale) -> Iterator[Arm]:
    """A model of all languages for each size, a baseline for each language, and the controls."""
    of, on_cpu = SIZES_OF[scale], scale in ON_CPU
    M = 1 if on_cpu else PAPER_M
    run = partial(training_run, scale, N=of.N, M=M, decode=of.decoded, data=PAIRS, many=True)
    if not on_cpu:
        for size, K in PAPER_CUTS:
            yield Arm(run(size, OPUS, arm=str(size), steps=of.steps, K=K))
        for language in OPUS:
            yield Arm(run(TRANSFORMER_BIG, (language,), arm=alone(language), steps=of.own_steps))
        return
    for size, rate in zip(SIZES, RATES, strict=True):
        yield Arm(run(size, TOY, arm=str(size), steps=of.steps), rate, beside(rate))
    smallest = partial(run, SIZES[0])
    yield Arm(smallest(TOY, arm=ORDER, steps=of.steps, data={**PAIRS, "order": 1}), RATES[0])
    yield Arm(smallest(TOY, arm=HALF, steps=of.steps // 2), RATES[0])
    for language, (chosen, rate) in zip(TOY, BASELINES, strict=True):
        own = partial(smallest, (language,), arm=alone(language), steps=of.own_steps)
        tried = DROPOUTS[: DROPOUTS.index(chosen) + 2]
        others = [own(dropout=dropout) for dropout in tried if dropout != chosen]
        yield Arm(own(dropout=chosen), rate, beside(rate), others)


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU of multilingual models over that of a baseline for each language."""
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 3",
        neurips="Figure 3",
        needs="any machine" if scale in ON_CPU else "16 GPUs, and OPUS-100",
        minutes={"smoke": 0.2, "laptop": 0.3, "overnight": 140},
        rounds=1,
        groups=groups_of(scale, [*arms(scale)]),
    )
