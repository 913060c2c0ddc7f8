"""Table 2 (section 3 of arXiv:1811.06965v5) beside ours, all over K=2, M=1."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from repro.experiments.cuts import CUTS
from repro.experiments.published_errors import of_model
from repro.experiments.table2.runs import ABOUT, KS, NAME, SIZES
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.sizes import NARROW
from repro.harness.text import EMPTY, TIMES, digits
from repro.paper.numbers import torchgpipe
from repro.report import style
from repro.report.claim import Claim
from repro.report.exhibit import CELL, ENDS, claims_on, first_text, over, printed
from repro.report.figures import Picture
from repro.report.framed import framed, lengths
from repro.report.table import Table

READS = ("costs",)  # how far its simulated steps are off
MEASURED, SMALLER, HALF = "measured", "measured, a smaller model", ", half widths"
# At Table 1's widths nothing of the Transformer fits at K=2 with M=4 or 32.
SHOWN = {"amoebanet-d": "time", "transformer": f"time{HALF}"}


@lru_cache(maxsize=1)
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
    # torchgpipe measured AmoebaNet-D (18, 256) on P40s, over its own K=2, M=1.
    theirs = [("amoebanet-d", cell) for cell in torchgpipe("amoebanetd_speed") if cell.K]
    ours, lines = cells(results), []
    for (model, M), of_line in printed(NAME).groupby(["model", "M"]):
        found = select(ours, model=model, M=M)
        places = select(found, setting=[MEASURED, SMALLER], K=2).groupby("where", sort=False)
        measured = [first_text(of_place) for _, of_place in places]
        line: dict[str, Any] = {"model": f"{style.model_name(model)}, M={M}"}
        for K, paper in zip(of_line["K"], of_line["paper"], strict=True):
            text = first_text(select(found, K=K, shown=True))
            line[f"K={K}: paper / simulated ({TIMES})"] = f"{paper:g} / {text}"
            if K == 2:  # the K of two cores
                line[f"K=2: measured ({TIMES})"] = "; ".join(measured) or EMPTY
        line[f"textbook ({TIMES})"] = ", ".join(map(digits, of_line["textbook"]))
        known = [digits(of.values["ratio"]) for name, of in theirs if (name, of.M) == (model, M)]
        line[f"torchgpipe ({TIMES})"] = ", ".join(known) or EMPTY
        lines.append(line)
    every = ours[[*CELL, "paper", "textbook", "fidelity", "setting", "where", "N", *ENDS]]
    return [framed(NAME, pd.DataFrame(lines), ABOUT, data=every)]


def claims(results: Results) -> Iterator[Claim]:
    ours = cells(results)
    what = "speed, K={K}, M={M} over K=2, M=1"
    cuts = {"amoebanet-d": "", "transformer": HALF}
    settings = {model: [f"{cut}{of}" for cut in CUTS.values()] for model, of in cuts.items()}
    ours, others = ours[ours["setting"] != SMALLER], "other cuts and widths"
    errors = {model: of_model(results, style.model_name(model)) for model in settings}
    exhibit = "Table 2, {model}"
    yield from claims_on(NAME, ours, exhibit, what, others, settings, errors).values()


def figures(results: Results) -> Iterator[Picture]:
    """A bar for each cell that does not print 1, beside the paper's; a line is the textbook's."""
    ours, cells_of = cells(results), printed(NAME).query("paper != 1").groupby("model")
    series = [ours[ours["shown"]], select(ours, setting=MEASURED)]
    series = [each.drop_duplicates(CELL) for each in series if len(each)]
    if not series:
        return
    figure, (panels,) = style.grid(1, len(cells_of), 2.7)
    width = 0.8 / (1 + len(series))
    for axes, (model, quoted) in zip(panels, cells_of, strict=True):
        xs = pd.RangeIndex(len(quoted))
        axes.bar(xs, quoted["paper"], width, color=style.QUOTED, label="quoted")
        for place, each in enumerate(series, start=1):
            found, fidelity = quoted[CELL].merge(each, "left", on=CELL), each["fidelity"].iloc[0]
            look: dict[str, Any] = {"color": style.FIDELITIES[fidelity], "label": fidelity}
            look |= {"yerr": lengths(*(found[end] for end in ENDS)), "error_kw": style.MODEL_ERROR}
            axes.bar(xs + place * width, found["ratio"], width, **look)
        ends = xs - width / 2, xs + width * (len(series) + 0.5)
        axes.hlines(quoted["textbook"], *ends, color=style.THEORY, label="textbook")
        points = zip(quoted["K"], quoted["M"], strict=True)
        axes.set_xticks(xs + width * len(series) / 2, [f"K={K}\nM={M}" for K, M in points])
        axes.set(title=style.model_name(model), ylabel=f"speed over K=2, M=1 ({TIMES})")
        axes.sharey(panels[0])
        axes.grid(axis="x", visible=False)
    style.legend_below(figure, panels[0])
    yield "bars", figure, {}
