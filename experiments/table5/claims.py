"""Ours for the claims that a larger batch translates better."""

from experiments.table5.report import METRICS, Gain, lines_of
from experiments.table5.runs import NAME
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results
from repro.harness.statistics import mean_interval


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> what the largest batch gains over the smallest, positive where it is better."""
    lines = lines_of(results)
    if not lines:
        return {}
    largest = lines[-1]
    runs = tuple(run.id for run in (*largest.smallest, *largest.runs))
    ours = {}
    for name, (title, _) in METRICS.items():
        mean, low, high = mean_interval(Gain(largest, name).better)
        ours[cell_id(NAME, title)] = Evidence(mean, "measured", runs, low, high)
    return ours
