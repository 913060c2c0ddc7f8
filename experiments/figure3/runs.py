"""Figure 3 (arXiv:1811.06965v5): multilingual translation against bilingual baselines."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments import translation
from experiments.learned import Arm, beside, groups_of
from experiments.translation import SIZES, TOY, Size, training_run
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, Experiment, RunSpec, Scale

NAME = "figure3"
WIDE, DEEP = 1, 2  # places among the sizes of the two with as many parameters
# Further trainings of the smallest size: both controls, and languages without common words. Those
# still have their English in common, so they are no control that must show nothing.
ORDER, HALF, UNRELATED = "another order", "half of the updates", "unrelated"
# Thirds of the languages, by their data; a baseline of few pairs overfits in fewer updates.
TIERS = ("high", "middle", "low")
SHORTER = {"high": 1, "middle": 2, "low": 4}  # the updates of a baseline are divided by it
ABOUT = read_about(__file__)


class Sizes(NamedTuple):
    N: int
    steps: int  # updates of the multilingual models
    own_steps: int  # and of a baseline with much data
    decoded: int


SIZES_OF: dict[Scale, Sizes] = {
    "smoke": Sizes(8, 3, 4, 4),
    "laptop": Sizes(32, 800, 400, 50),
    "overnight": Sizes(32, 2500, 2000, 500),
    "paper": Sizes(2048, 500_000, 100_000, 500),
}
SIZES_OF["node"] = SIZES_OF["paper"]
MISALIGNED = 0.1
# Chosen by the tuning runs: for each size, and for each language's baseline with its dropout.
TRIED = (0.002, 0.004, 0.008)
RATES = (0.004, 0.004, 0.004, 0.004)
DROPOUTS = (0.1, 0.3)
BASELINES = dict.fromkeys(TOY, (0.1, 0.004))


def tier_of(language: str) -> str:
    return TIERS[TOY.index(language) * len(TIERS) // len(TOY)]


def alone(language: str, dropout: float | None = None) -> str:
    """The baseline of a language; on a CPU with a dropout, by default the chosen one."""
    if language not in BASELINES:
        return f"{language} alone"
    return f"{language} alone, dropout {dropout or BASELINES[language][0]:g}"


def arms(scale: Scale) -> Iterator[Arm]:
    """A model of all languages for each size, a baseline for each language, and the controls."""
    of, on_cpu = SIZES_OF[scale], scale in ON_CPU
    if not on_cpu:
        for size, K in translation.PAPER_CUTS:
            yield Arm(_run(scale, str(size), size, translation.OPUS, of.steps, K=K))
        for language in translation.OPUS:
            size = translation.TRANSFORMER_BIG
            run = _run(scale, alone(language), size, (language,), of.own_steps, stops=True)
            yield Arm(run)
        return
    for size, rate in zip(SIZES, RATES, strict=True):
        yield Arm(_run(scale, str(size), size, TOY, of.steps), rate, beside(TRIED, rate))
    smallest, rate = SIZES[0], RATES[0]
    yield Arm(_run(scale, ORDER, smallest, TOY, of.steps, order=1), rate)
    yield Arm(_run(scale, UNRELATED, smallest, TOY, of.steps, related=False), rate)
    yield Arm(_run(scale, HALF, smallest, TOY, of.steps // 2), rate)
    for language, (chosen, rate) in BASELINES.items():
        steps = of.own_steps // SHORTER[tier_of(language)]
        for dropout in DROPOUTS:
            arm = alone(language, dropout)
            run = _run(scale, arm, smallest, (language,), steps, dropout=dropout)
            yield Arm(run, rate, beside(TRIED, rate), trained=dropout == chosen)


def _run(
    scale: Scale,
    arm: str,
    size: Size,
    languages: tuple[str, ...],
    steps: int,
    *,
    K: int = 1,
    dropout: float | None = None,
    stops: bool = False,
    **data: Any,
) -> RunSpec:
    on_cpu, of = scale in ON_CPU, SIZES_OF[scale]
    return training_run(
        scale,
        size,
        languages,
        arm=arm,
        N=of.N,
        steps=steps,
        decode=of.decoded,
        data={"misaligned": MISALIGNED} | data,
        many=True,
        dropout=dropout,
        stops=stops,
        K=K,
        M=1 if on_cpu else translation.PAPER_M,
    )


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU of multilingual models over that of a baseline for each language.

    Paper: section 5 of v5, Figure 3. One model for all languages, five sizes T(L, H, A) cut into 2,
    4, 8 and 16 partitions; that of the smallest is not stated. Larger models translate all
    languages better, and those with little data gain most. At 1.3B parameters the deep model equals
    the wide one where there is much data, and is much better where there is little.
    """
    return Experiment(
        **ABOUT.of_experiment,
        paper="Figure 3",
        neurips="Figure 3",
        needs="any machine" if scale in ON_CPU else "16 GPUs, and OPUS-100",
        minutes={"smoke": 0.6, "laptop": 5, "overnight": 90},
        rounds=1,
        groups=groups_of(scale, [*arms(scale)]),
    )
