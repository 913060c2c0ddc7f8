"""Table 5 (arXiv:1811.06965v5; not at NeurIPS): translation quality against batch size."""

from collections.abc import Iterator

from repro.experiments.learned import BRIEF, HALF, ORDER, Arm, groups_of, one_language
from repro.harness.about import read_about
from repro.harness.spec import ON_CPU, SCALES, Experiment, Scale

NAME = "table5"
UPDATES, END, PAIRS = "equal updates", "to convergence", "equal pairs"  # protocols
# Sentence pairs of a mini-batch. The paper's 260K, 1M and 4M tokens are 2048, 8192 and 32768
# sentences of 128 tokens.
NS: dict[Scale, tuple[int, int, int]] = dict.fromkeys(SCALES, (2048, 8192, 32768))
NS |= {**dict.fromkeys(BRIEF, (4, 16, 64)), "overnight": (8, 32, 128)}
# For each N the updates at scale overnight, the rate that the tuning runs chose, and those that
# they tried. Under equal updates all have the rate that is best for the smallest N, which the claim
# expects to lose; so do the controls.
LOW, MIDDLE, HIGH = (0.002, 0.004, 0.008), (0.004, 0.008, 0.016), (0.008, 0.016, 0.032)
PLAN: dict[str, tuple[tuple[int, float, tuple[float, ...]], ...]] = {
    UPDATES: ((2000, 0.008, MIDDLE), (2000, 0.008, ()), (2000, 0.008, ())),
    END: ((16000, 0.008, (*LOW, 0.016)), (8000, 0.008, MIDDLE), (4000, 0.008, MIDDLE)),
    PAIRS: ((8000, 0.008, MIDDLE), (2000, 0.016, (*MIDDLE, 0.032)), (500, 0.016, HIGH)),
}
# Of the second N.
CONTROLS = ((ORDER, 2000, {"order": 1}), (HALF, 1000, {}))
PAPER_UPDATES = 300_000  # as many as the Transformer's authors made
ABOUT = read_about(__file__)


def arm_of(protocol: str, N: int) -> str:
    return f"{protocol}, N={N}"


def arms(scale: Scale) -> Iterator[Arm]:
    if scale not in ON_CPU:
        for N in NS[scale]:
            yield Arm(one_language(scale, arm_of(UPDATES, N), N, PAPER_UPDATES))
        return
    share = 1 / 500 if scale in BRIEF else 1.0  # of the updates
    for protocol, settings in PLAN.items():
        for N, (steps, rate, tried) in zip(NS[scale], settings, strict=True):
            yield Arm(
                one_language(scale, arm_of(protocol, N), N, round(share * steps)), rate, tried
            )
    for arm, steps, data in CONTROLS:
        rate = PLAN[UPDATES][1][1]
        yield Arm(one_language(scale, arm, NS[scale][1], round(share * steps), **data), rate)


def experiment(scale: Scale = "laptop") -> Experiment:
    """BLEU for mini-batches of 1 : 4 : 16, under three protocols."""
    on_cpu = scale in ON_CPU
    return Experiment(
        **ABOUT.of_experiment,
        paper="Table 5",
        needs="any machine" if on_cpu else "4 GPUs, and WMT14 German to English",
        minutes={"smoke": 0.1, "laptop": 0.2, "overnight": 90},
        rounds=1,
        groups=groups_of(scale, [*arms(scale)]),
    )
