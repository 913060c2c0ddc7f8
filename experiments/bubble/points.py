"""The runs of the experiment bubble by place, K, M and slow stage, for its tables and figures."""

from typing import NamedTuple

from experiments.bubble.runs import NAME
from repro.harness.results import Results, Run
from repro.report.compare import rows_of, where
from repro.report.grid import Grid
from repro.report.ratio import Ratio


class Point(NamedTuple):
    """A line of a table.

    Attributes:
        where: scale and machine.
        slow_stage: the stage that takes longer than the others; None where all are equal.
        slowdown: how many times as long it takes.
    """

    where: str
    K: int
    M: int
    slow_stage: int | None = None
    slowdown: float = 1.0


def point_of(results: Results, run: Run) -> Point:
    """Where a run stands."""
    equal = Point(where(results, run), run.K, run.M)
    forward = run.spec.model_args.get("forward_s")
    if not isinstance(forward, list):
        return equal
    slowest = max(forward)
    return equal._replace(slow_stage=forward.index(slowest), slowdown=slowest / min(forward))


def runs_by_point(results: Results, schedule: str = "gpipe") -> Grid:
    rows = rows_of(results, experiment=NAME, schedule=schedule)
    return Grid.of(rows, lambda run: point_of(results, run))


def points(results: Results, *, slow: bool = False) -> list[Point]:
    rows = rows_of(results, experiment=NAME, schedule="gpipe")
    every = {point_of(results, run) for run in rows}
    return sorted(point for point in every if (point.slow_stage is not None) == slow)


def step_over(results: Results, run: Run, base: Run) -> Ratio:
    """The step of a run over that of another, inside common rounds."""
    return Ratio(*results.ratio(base, run), baseline="equal stages")


def position(point: Point) -> str:
    """Which stage is slow, such as `middle (stage 2)`."""
    names = {0: "first", point.K - 1: "last"}
    return f"{names.get(point.slow_stage or 0, 'middle')} (stage {point.slow_stage})"
