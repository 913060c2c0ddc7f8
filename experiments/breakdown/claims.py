"""Ours for the claims about the step breakdown: AmoebaNet-D, simulated at the paper's size."""

from math import nan

from experiments.breakdown.runs import NAME, K, M
from experiments.table2.recorded import at_papers_size
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.paper import breakdown
from repro.report.compare import rows_of
from repro.report.rounds import fits, parts

PIE = {slice_.part: slice_.percent / 100 for slice_ in breakdown()}
# Parts from which a setting of the simulation was inferred.
FITTED = {
    "bubble": f"M={M} was inferred from this slice",
    "setup": "the profile's 40 ms were taken from this slice",
}


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> ours. The paper prints no M, so other M stand beside the inferred one."""
    rows = rows_of(results, experiment=NAME, model="amoebanet-d", K=K, status="done")
    # A simulation that is counted not to fit its device shows nothing.
    runs = [run for run in rows if at_papers_size(run) and fits(run) is not False]
    for fidelity in ("measured", "simulated"):
        by_m = {run.M: run for run in runs if run.fidelity == fidelity}
        if M in by_m:
            ours = {cell_id(NAME, part): _share(by_m, part) for part in PIE}
            for name in ("23 %", "a third", "a quarter"):
                ours[cell_id(NAME, "recompute", name)] = ours[cell_id(NAME, "recompute")]
            return ours
    return {}


def _share(by_m: dict[int, Run], part: str) -> Evidence:
    """Percent of K x step."""
    run = by_m[M]
    others = {f"M={other}": _percent(by_m[other], part) for other in by_m if other != M}
    return Evidence(
        _percent(run, part),
        "measured" if run.fidelity == "measured" else "simulated",
        (run.id,),
        papers_size=True,
        setting=f"M={M}",
        others={} if part in FITTED else others,
        fitted=FITTED.get(part, ""),
    )


def _percent(run: Run, part: str) -> float:
    return 100 * parts(run).get(part, nan)
