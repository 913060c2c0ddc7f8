"""Ours for the claims about the bubble, and for the order of Figure 2."""

from experiments.bubble.points import points, runs_by_point
from experiments.bubble.runs import NAME
from repro.claims.cells import KS, cell_id
from repro.claims.claim import Evidence
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results
from repro.paper import theory
from repro.report.compare import rows_of

FIGURE2 = {"K": 4, "M": 4, "schedule": "gpipe"}


def evidence(results: Results) -> dict[str, Evidence]:
    """Claim id -> ours: equal stages, simulated, and the order in which a real step ran."""
    early, late = runs_by_point(results), runs_by_point(results, "gpipe-late")
    ours: dict[str, Evidence] = {}
    for point in points(results):
        if point.K not in KS or point.M != 4 * point.K:
            continue
        run, waiting = early.run("simulated", *point), late.run("simulated", *point)
        if run is None or not run.done:
            continue
        idle = 100 * run.bubble_idle_over_total
        plain = 100 * theory.bubble_over_total(point.K, point.M)
        for name, value in (("negligible", idle), ("below theory", idle - plain)):
            claim = cell_id(NAME, f"K={point.K}", name)
            ours.setdefault(claim, Evidence(value, "simulated", (run.id,)))
        if (point.K, point.M) == (4, 16) and waiting is not None and waiting.done:
            textbook = Evidence(
                100 * waiting.bubble_idle_over_total,
                "simulated",
                (waiting.id, run.id),
                setting="recompute after the gradient",
                others={"early recompute": idle},
            )
            ours.setdefault("bubble/3 of 19", textbook)
    return ours | _order(results)


def _order(results: Results) -> dict[str, Evidence]:
    """The order in which a recorded step of K=4, M=4 ran, measured if there is one."""
    for fidelity in ("measured", "emulated"):
        for experiment in (NAME, "table2"):
            for run in rows_of(
                results, experiment=experiment, fidelity=fidelity, status="done", **FIGURE2
            ):
                timeline = results.timeline(run)
                if timeline is not None:
                    value = float(out_of_order(timeline, run.M))
                    return {"figure2/order": Evidence(value, fidelity, (run.id,))}
    return {}


def out_of_order(timeline: Timeline, M: int) -> int:
    """Stages whose forwards do not ascend, or whose backwards do not descend after them."""
    ascending = list(range(M))
    drawn = [*(("F", i) for i in ascending), *(("B", i) for i in reversed(ascending))]
    count = 0
    for stage in range(timeline.stages):
        spans = [span for span in timeline.spans if span.stage == stage and span.kind in "FB"]
        ran = [(span.kind, span.micro_batch) for span in sorted(spans, key=lambda span: span.start)]
        count += ran != drawn
    return count
