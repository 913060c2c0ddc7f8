"""Ours for the claims about Table 4."""

from experiments.table4.report import TRANSFER_CLAIM, decisive, lines_of, on_paper_data
from experiments.table4.runs import NAME
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results
from repro.harness.statistics import mean_interval
from repro.paper import table4
from repro.report.compare import matching, rows_of


def evidence(results: Results) -> dict[str, Evidence]:
    ours: dict[str, Evidence] = {}
    at_size = rows_of(results, experiment=NAME, status="done", scale="paper")
    for row in table4():
        shares = on_paper_data(at_size, row.dataset)
        if shares:
            mean, low, high = (100 * value for value in mean_interval(shares))
            runs = tuple(run.id for run in at_size)
            ours[cell_id(NAME, row.dataset)] = Evidence(
                mean, "measured", runs, low, high, papers_size=True
            )
    digits = rows_of(results, experiment=NAME, status="done", group="digits")
    for place in dict.fromkeys(run.place for run in digits):
        lines = [
            line for line in lines_of(results, matching(digits, place=place)) if line.differences
        ]
        if lines:
            ours[TRANSFER_CLAIM] = decisive(lines)
    return ours
