"""Table 5 (arXiv:1811.06965v5): what a larger batch gains, under three protocols."""

from collections.abc import Iterator

from experiments import compared
from experiments.compared import Compared, Comparison, over
from experiments.learned import at
from experiments.table5 import runs as plan
from experiments.table5.runs import ABOUT, END, HALF, NAME, ORDER, PAIRS, SIZES_OF, UPDATES, arm_of
from repro.claims.claim import Evidence
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.spec import ON_CPU
from repro.paper.numbers import table5
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_gains")


def comparisons(runs: Frame) -> list[Comparison]:
    """The largest batch against the smallest under each protocol, and the controls."""
    scale = runs["scale"].iloc[0]
    of = at(scale, SIZES_OF)
    smallest, *_, largest = of.Ns
    of_pairs = arm_of(PAIRS if scale in ON_CPU else UPDATES, smallest)
    pairs = {UPDATES: arm_of(UPDATES, smallest), END: arm_of(END, smallest), PAIRS: of_pairs}
    every = [
        over(arm_of(protocol, largest), worse, f"{NAME}/{protocol}")
        for protocol, worse in pairs.items()
    ]
    # The same arm with twice the updates.
    every.append(over(arm_of(END, smallest), of_pairs))
    if scale in ON_CPU:
        usual = arm_of(UPDATES, of.base)
        every += [over(ORDER, usual, control="nothing"), over(usual, HALF, control="something")]
    return every


def comparisons_of(results: Results) -> dict[str, list[Compared]]:
    return compared.of_places(results, NAME, plan.arms, comparisons, "bleu")


def tables(results: Results) -> list[Table]:
    frame = compared.arms_frame(results, NAME)
    smallest, *_, largest = sorted(table5(), key=lambda size: size.batch_tokens)
    # The paper says nothing of equal pairs.
    gain: float = largest.bleu - smallest.bleu
    quoted = dict.fromkeys([f"{NAME}/{UPDATES}", f"{NAME}/{END}"], gain)
    found = comparisons_of(results)
    return [
        compared.comparisons_table(results, f"{NAME}_gains", found, ABOUT, "BLEU", quoted),
        compared.arms_table(results, NAME, frame, ABOUT, N="N", updates="steps"),
    ]


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> how much more BLEU the largest batch has than the smallest."""
    return compared.claims_of(comparisons_of(results))


def figures(results: Results) -> Iterator[Picture]:
    frame = compared.arms_frame(results, NAME)
    panels = {
        protocol: [arm for arm in frame["arm"].unique() if arm.startswith(protocol)]
        for protocol in (UPDATES, PAIRS, END)
    }
    yield "curves", compared.curves(frame, panels), {}
