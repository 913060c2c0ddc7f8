"""Table 5 (arXiv:1811.06965v5): what a larger batch gains, under three protocols."""

from collections.abc import Iterator

from matplotlib.figure import Figure

from experiments.compared import (
    Compared,
    Comparison,
    arms_frame,
    arms_table,
    claims_of,
    compared,
    comparisons_table,
    curves,
    over,
)
from experiments.table5.runs import ABOUT, END, HALF, NAME, ORDER, PAIRS, SIZES_OF, UPDATES, arm_of
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.harness.spec import Scale
from repro.paper.numbers import table5
from repro.report.declared import Shown
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_gains")


def comparisons(scale: Scale) -> list[Comparison]:
    """The largest batch against the smallest under each protocol, and the controls."""
    smallest, *_, largest = SIZES_OF[scale].Ns
    found = [
        over(
            arm_of(protocol, largest),
            arm_of(protocol, smallest),
            f"{NAME}/{protocol}",
            text=f"{protocol}: N={largest} over N={smallest}",
        )
        for protocol in (UPDATES, END, PAIRS)
    ]
    base = arm_of(UPDATES, SIZES_OF[scale].base)
    found += [
        over(ORDER, base, shows=False),
        over(base, HALF, shows=True),
    ]
    return found


def tables(results: Results) -> list[Table]:
    frame = arms_frame(results, NAME)
    if frame.empty:
        return []
    smallest, *_, largest = sorted(table5(), key=lambda size: size.batch_tokens)
    quoted = dict.fromkeys(
        map(f"{NAME}/{{}}".format, (UPDATES, END, PAIRS)), largest.bleu - smallest.bleu
    )
    return [
        arms_table(results, NAME, frame, ABOUT, N="N", updates="steps"),
        comparisons_table(results, f"{NAME}_gains", of_places(results), ABOUT, "BLEU", quoted),
    ]


def of_places(results: Results) -> dict[str, list[Compared]]:
    places = arms_frame(results, NAME).groupby("where", sort=False)
    return {
        where: compared(runs, comparisons(runs["scale"].iloc[0]), "bleu") for where, runs in places
    }


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> how much more BLEU the largest batch has than the smallest."""
    for found in of_places(results).values():
        yield from claims_of(found)


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    frame = arms_frame(results, NAME)
    panels = {
        protocol: [arm for arm in frame["arm"].unique() if arm.startswith(protocol)]
        for protocol in (UPDATES, PAIRS, END)
    }
    yield "curves", curves(frame, panels), ABOUT.caption("curves")
