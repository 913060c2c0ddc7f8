"""The runs of the demonstration by place, model, K, M and strategy, for its table and figures."""

from dataclasses import replace
from typing import NamedTuple

from experiments.methods.recorded import method_of
from experiments.two_gpu_demo.runs import NAME
from repro.harness.results import Results, Run
from repro.report.compare import rows_of, where
from repro.report.grid import Grid
from repro.report.ratio import Ratio, over

STRATEGY_NAMES = {"single": "one device", "naive": "naive", "gpipe": "GPipe"}


class Point(NamedTuple):
    """What the strategies are compared at: a line of the table.

    Attributes:
        where: scale and machine.
        remat: which micro-batches are recomputed.
        K: devices of naive model parallelism and of GPipe.
    """

    where: str
    remat: str
    model: str
    K: int
    M: int


def point_of(results: Results, run: Run) -> Point:
    """Where a run stands; K is 1 for one device."""
    return Point(where(results, run), run.remat, run.model, run.K, run.M)


def runs_by_point(results: Results) -> Grid:
    runs = rows_of(results, experiment=NAME)
    return Grid.of(runs, lambda run: (method_of(run), point_of(results, run)))


def key_of(strategy: str, point: Point) -> tuple[str, str, Point]:
    """Where `runs_by_point` has the run of a strategy at a point; that of one device has K=1."""
    return "measured", strategy, point._replace(K=1) if strategy == "single" else point


def points(results: Results) -> list[Point]:
    runs = rows_of(results, experiment=NAME)
    return list(dict.fromkeys(point_of(results, run) for run in runs if run.K > 1))


def over_one_device(results: Results, run: Run) -> Ratio:
    """Throughput over that of one device at the same M, N and re-materialization."""
    ratio = over(results, run, K=1, schedule="gpipe")
    return replace(ratio, baseline=f"one device at M={run.M}")
