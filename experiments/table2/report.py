"""Table 2 (section 3 of arXiv:1811.06965v5) beside ours, all over K=2, M=1."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from repro.experiments.cuts import CUTS
from repro.experiments.table2.runs import ABOUT, KS, NAME, SIZES
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.sizes import NARROW
from repro.harness.text import EMPTY, digits
from repro.paper.numbers import torchgpipe
from repro.report.claim import Claim
from repro.report.exhibit import CELL, ENDS, bars, claims_on, first_text, over, printed
from repro.report.figures import Picture
from repro.report.framed import framed
from repro.report.style import model_name
from repro.report.table import Table

MEASURED, SMALLER, HALF = "measured", "measured, a smaller model", ", half widths"
# At Table 1's widths nothing of the Transformer fits at K=2 with M=4 or 32.
SHOWN = {"amoebanet-d": "time", "transformer": f"time{HALF}"}


def cells(results: Results) -> Frame:
    """A line for each printed cell and setting of ours, those that are shown first."""
    runs = runs_frame(results, NAME, K=KS, done=True)
    runs["setting"] = [_setting(run) for run in runs["run"]]
    runs = over(results, runs, ["model", "setting", "where"], K=2, M=1)
    runs["shown"] = runs["setting"] == runs["model"].map(SHOWN)
    runs = runs.sort_values("shown", ascending=False, kind="stable")
    return printed(NAME).merge(runs, on=CELL)


def _setting(run: Run) -> str:
    """The cut and the widths, which the paper does not print."""
    args = run.spec.model_args
    if run.fidelity == "measured":
        return MEASURED if args == SIZES[run.model]["paper"] else SMALLER
    return CUTS[run.spec.partitioner] + HALF * (args == NARROW[run.scale])


def tables(results: Results) -> list[Table]:
    """The paper's grid: a line for each model and M, with the paper's number over ours."""
    ours, theirs, lines = cells(results), _of_torchgpipe(), []
    for (model, M), of_line in printed(NAME).groupby(["model", "M"]):
        found = select(ours, model=model, M=M)
        places = select(found, setting=[MEASURED, SMALLER], K=2).groupby("where", sort=False)
        line: dict[str, Any] = {"model": f"{model_name(model)}, M={M}"}
        for K, paper in zip(of_line["K"], of_line["paper"], strict=True):
            text = first_text(select(found, K=K, shown=True))
            line[f"K={K}: paper / simulated"] = f"{paper:g} / {text}"
            if K == 2:  # the K of two cores
                line["measured K=2"] = "; ".join(first_text(of) for _, of in places) or EMPTY
        line["textbook"] = ", ".join(map(digits, of_line["textbook"]))
        known = [digits(theirs[model, K, M]) for K in of_line["K"] if (model, K, M) in theirs]
        line["torchgpipe"] = ", ".join(known) or EMPTY
        lines.append(line)
    return [framed(NAME, pd.DataFrame(lines), ABOUT, data=_long(ours))]


def _of_torchgpipe() -> dict[tuple[str, int, int], float]:
    """What torchgpipe measured of AmoebaNet-D (18, 256) on P40s, over its own K=2, M=1."""
    cells = torchgpipe("amoebanetd_speed")
    return {("amoebanet-d", cell.K, cell.M): cell.values["ratio"] for cell in cells if cell.K}


def _long(ours: Frame) -> Frame:
    """For the csv file: a line for each cell and setting."""
    data = ours[[*CELL, "textbook", "fidelity", "setting", "where", "N", *ENDS]]
    places = [*ours[CELL].itertuples(index=False, name=None)]
    verdicts = {place: claim.verdict for place, claim in _claims(ours).items()}
    return data.assign(
        paper=ours["paper"],
        torchgpipe=[_of_torchgpipe().get(place) for place in places],
        verdict=[verdicts.get(place, "") for place in places],
    )


def claims(results: Results) -> Iterator[Claim]:
    yield from _claims(cells(results)).values()


def _claims(ours: Frame) -> dict[Any, Claim]:
    what = "speed, K={K}, M={M} over K=2, M=1"
    cuts = {"amoebanet-d": "", "transformer": HALF}
    settings = {model: [f"{cut}{of}" for cut in CUTS.values()] for model, of in cuts.items()}
    ours = ours[ours["setting"] != SMALLER]
    return claims_on(NAME, ours, "Table 2, {model}", what, "other cuts and widths", settings)


def figures(results: Results) -> Iterator[Picture]:
    ours = cells(results)
    yield "bars", bars(NAME, ours[ours["shown"] | (ours["setting"] == MEASURED)]), {}
