"""Ours for the claims about Table 3: measured on GPUs if they ran it, else simulated."""

from dataclasses import replace
from math import nan

from experiments.costs.error import error_bar
from experiments.table3.runs import NAME, M
from experiments.table3.series import KS, all_series, free_step, runs_by_line
from repro.claims.cells import cell_id, throughput_id
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.report.ratio import over
from repro.report.rounds import fits

NOT_FITTING = "counted not to fit the device"


def evidence(results: Results) -> dict[str, Evidence]:
    grid = runs_by_line(results)
    bar = error_bar(results)
    ours: dict[str, Evidence] = {}
    # A measurement stands before a simulation.
    for fidelity in ("measured", "simulated"):
        for series in all_series(grid):
            base = grid.run(fidelity, series, 2)
            if series.scaled_down or base is None or not base.done:
                continue
            for K in KS[1:]:
                run = grid.run(fidelity, series, K)
                if run is None or not run.done:
                    continue
                cell = _over_k2(results, run, base)
                if bar and fidelity == "simulated":
                    low, high = bar.ends(cell.value)
                    cell = replace(cell, low=low, high=high)
                ours.setdefault(throughput_id(NAME, series.model, K, M), cell)
            last = grid.run("simulated", series, KS[-1])
            if last is not None and last.done:
                ours.setdefault(cell_id(NAME, series.model, "slow links"), _cost_of_links(last))
    return ours


def _over_k2(results: Results, run: Run, base: Run) -> Evidence:
    """Throughput over that of K=2; NaN where one of both does not fit its device."""
    speedup = over(results, run, K=2)
    fitting = fits(run) is not False and fits(base) is not False
    return Evidence(
        speedup.value if fitting else nan,
        "measured" if run.fidelity == "measured" else "simulated",
        (run.id, base.id),
        speedup.low,
        speedup.high,
        papers_size=True,
        why=NOT_FITTING,
    )


def _cost_of_links(run: Run) -> Evidence:
    """Percent of the step that a free link would save."""
    return Evidence(
        100 * (1 - free_step(run) / run.step_s) if fits(run) is not False else nan,
        "simulated",
        (run.id,),
        papers_size=True,
        why=NOT_FITTING,
    )
