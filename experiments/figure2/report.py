"""Figure 2 of arXiv:1811.06965v5 with recorded steps, and whether they have its order."""

from collections.abc import Iterator
from itertools import islice

from repro.experiments.figure2.runs import ABOUT, NAME, K, M
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.frame import runs_frame
from repro.harness.results import Results
from repro.report import gantt
from repro.report.claim import Claim, number
from repro.report.figures import Picture
from repro.report.table import Table

__all__ = ["ABOUT", "claims", "figures", "tables"]


def steps(results: Results) -> Iterator[tuple[Timeline, Timeline]]:
    """Of each place the step of the whole mini-batch, and the one of M micro-batches."""
    for _, runs in runs_frame(results, NAME, done=True).groupby("where"):
        found = {run.M: results.timeline(run) for run in runs["run"]}
        whole, divided = found.get(1), found.get(M)
        if whole is not None and divided is not None:
            yield whole, divided


def tables(results: Results) -> list[Table]:
    """None: the picture is the exhibit."""
    return []


def claims(results: Results) -> Iterator[Claim]:
    what = f"deviations from the drawn schedule, K={K}, M={M}"
    ours = [number(out_of_order(divided, M)) for _, divided in steps(results)]
    yield Claim("Figure 2, schedule", what, ours, "emulated", paper=0, says="a drawing")


def out_of_order(step: Timeline, micro_batches: int) -> int:
    """Stages whose forwards do not ascend, or whose backwards do not descend after them."""
    ascending = [("F", i) for i in range(micro_batches)]
    descending = [("B", i) for i in reversed(range(micro_batches))]
    count = 0
    for stage in range(step.stages):
        spans = [span for span in step.spans if span.stage == stage and span.kind in "FB"]
        ran = [(span.kind, span.micro_batch) for span in sorted(spans, key=lambda span: span.start)]
        count += ran != ascending + descending
    return count


def figures(results: Results) -> Iterator[Picture]:
    """Of the first place that has both steps."""
    for whole, divided in islice(steps(results), 1):
        titled = [("M=1, as Figure 2(b)", whole), (f"M={M}, as Figure 2(c)", divided)]
        yield "steps", gantt.draw(titled, "emulated"), {"M": M}
