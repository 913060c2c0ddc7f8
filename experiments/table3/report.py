"""Table 3 of arXiv:1811.06965v5, throughput without fast links, beside ours; all over K=2."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pandas as pd

from repro.experiments.cuts import CUTS
from repro.experiments.table3.runs import ABOUT, KS, MODELS, NAME, THROTTLED
from repro.harness.frame import Frame, ratios, runs_frame, select
from repro.harness.results import Results
from repro.report.claim import Claim
from repro.report.compare import link_name
from repro.report.exhibit import CELL, claims_on, first_text, over, printed
from repro.report.framed import framed, with_interval, with_parts
from repro.report.style import model_name
from repro.report.table import Table

SLOWER = "over a free link"


@lru_cache(maxsize=1)
def cells(results: Results) -> Frame:
    """A line for each printed cell, fidelity and cut of ours, those that are cut by time first."""
    runs = runs_frame(results, NAME, K=KS, done=True)
    runs = runs.loc[[run.spec.model_args == MODELS[run.model][0] for run in runs["run"]]]
    runs["setting"] = [CUTS[spec.partitioner] for spec in runs["spec"]]
    alike = ["model", "fidelity", "setting", "where"]
    runs = over(results, runs, alike, K=2).drop_duplicates([*alike, "K"])
    runs = runs.sort_values("setting", key=lambda cuts: cuts != "time", kind="stable")
    return printed(NAME).merge(runs, on=CELL)


def tables(results: Results) -> list[Table]:
    """The paper's cells, and what slow links cost a small model."""
    ours = cells(results)
    judged = _claims(results, ours)
    is_measured = "measured" in {*ours["fidelity"]}
    lines = []
    for cell in printed(NAME).query("paper != 1").itertuples():
        of_cell = select(ours, model=cell.model, K=cell.K)
        simulated = select(of_cell, fidelity="simulated")
        cuts = {cut: first_text(select(simulated, setting=cut)) for cut in CUTS.values()}
        line: dict[str, Any] = {"cell": f"{model_name(cell.model)}, K={cell.K}"}
        line |= {"paper": cell.paper, "textbook": cell.textbook}
        if is_measured:
            line["measured"] = first_text(select(of_cell, fidelity="measured"))
        line["simulated"] = cuts["time"]
        line["other cuts"] = f"{cuts['share']} by share; {cuts['variance']} by variance"
        line["verdict"] = judged[cell.model, cell.K, cell.M].verdict
        lines.append(line)
    frame = pd.DataFrame(lines)
    return [framed(NAME, frame, ABOUT), slow_links(results)]


def slow_links(results: Results) -> Table:
    """Measured small: K=2 with a slow link, over the same block's step with a free one."""
    runs = runs_frame(results, NAME, done=True)
    runs = runs[runs["group"].str.endswith(THROTTLED)]
    # Of steps, so the inverse of the ratio of throughputs.
    slower = 1 / ratios(results, runs, link=None)[["ratio", "high", "low"]].to_numpy()
    runs = with_interval(with_parts(runs), SLOWER, slower.tolist())
    runs["model"] = runs["model"].map(model_name)
    runs["link"] = runs["spec"].map(link_name)
    runs["step (ms)"] = 1e3 * runs["step_s"]
    runs = runs.sort_values(["model", "machine", "scale"], kind="stable")
    ends = [name for name in runs if name.startswith(SLOWER)]
    frame = runs[["model", "where", "link", "step (ms)", *ends, "transfer"]]
    return framed(f"{NAME}_links", frame, ABOUT)


def claims(results: Results) -> Iterator[Claim]:
    yield from _claims(results, cells(results)).values()


def _claims(results: Results, ours: Frame) -> dict[Any, Claim]:
    what = "throughput without fast links, K={K} over K=2"
    settings = {model: [*CUTS.values()] for model in MODELS}
    return claims_on(NAME, ours, "Table 3, {model}", what, "other cuts", settings, {})
