"""The runs of Table 3 by model, size and K, and those with a slow link."""

from math import inf, nan
from typing import NamedTuple

from experiments.table3.runs import KS as EVERY_K
from experiments.table3.runs import NAME, THROTTLED, M
from repro.harness.results import Results, Run
from repro.harness.sizes import TABLE3_AMOEBANET, TABLE3_TRANSFORMER
from repro.paper import table3, theory
from repro.report.compare import rows_of, where
from repro.report.grid import Grid
from repro.report.ratio import ITSELF, Ratio, ideal_over_k1
from repro.report.style import model_name

KS = EVERY_K[1:]  # those of the table; K=1 is no cell of it
SIZES = {"amoebanet-d": TABLE3_AMOEBANET["paper"], "transformer": TABLE3_TRANSFORMER["paper"]}
PRINTED = {(cell.model, cell.K): cell.value for cell in table3() if cell.M == M}


class Series(NamedTuple):
    """Runs of one model and size at one place, which share their K=2.

    Attributes:
        scaled_down: whether the model is smaller than the paper's.
        where: scale and machine.
    """

    scaled_down: bool
    model: str
    where: str


class Line(NamedTuple):
    series: Series
    K: int


def runs_by_line(results: Results) -> Grid:
    """The runs whose links are as fast as their device's."""

    def line_of(run: Run) -> Line:
        scaled_down = run.spec.model_args != SIZES.get(run.model)
        return Line(Series(scaled_down, run.model, where(results, run)), run.K)

    rows = [run for run in rows_of(results, experiment=NAME) if not run.group.endswith(THROTTLED)]
    return Grid.of(rows, line_of)


def all_series(grid: Grid) -> list[Series]:
    """Those of the paper's sizes first."""
    return sorted({series for series, _ in grid.keys if isinstance(series, Series)})


def title_of(series: Series, grid: Grid) -> str:
    """The model, and the place where its size is not the paper's or several places have it."""
    name = model_name(series.model)
    alike = [other for other in all_series(grid) if other[:2] == series[:2]]
    return f"{name} ({series.where})" if series.scaled_down or len(alike) > 1 else name


def quoted(model: str, K: int) -> float:
    """A cell of Table 3; NaN where there is none."""
    return PRINTED.get((model, K), nan)


def ideal(K: int) -> float:
    """Throughput over K=2 with equal stages, free messages and early recomputation."""
    return ideal_over_k1(K, M, "gpipe", "always") / ideal_over_k1(2, M, "gpipe", "always")


def textbook(K: int) -> float:
    """Throughput over K=2 by K M / (M + K - 1)."""
    return theory.speedup_over_k1(K, M, "plain") / theory.speedup_over_k1(2, M, "plain")


def throttled(results: Results) -> list[Run]:
    """The runs at K=2 whose link is slowed down, or not, by model and place, the fastest first."""
    rows = [run for run in rows_of(results, experiment=NAME) if run.group.endswith(THROTTLED)]
    return sorted(rows, key=lambda run: (run.model, run.place, -link_speed(run)))


def link_speed(run: Run) -> float:
    """Bytes per second of a run's link; infinity where it is not throttled."""
    return (run.spec.link and run.spec.link.bytes_per_second) or inf


def over_free_link(results: Results, run: Run) -> Ratio:
    """The step of a run over that of the same run whose link is not throttled, inside rounds."""
    base = results.baseline(run, link=None)
    if base is None or not run.done:
        return Ratio(nan, nan, nan, 0, "")
    if base is run:
        return Ratio(1.0, nan, nan, len(run.rounds), ITSELF)
    return Ratio(*results.ratio(base, run), baseline="not throttled")


def free_step(run: Run) -> float:
    """Seconds of a simulated run's step if its messages took no time, as the run recorded it."""
    modelled = run.rounds[-1].modelled
    if modelled is None:
        return nan
    return run.step_s - (modelled.rungs["transfer"] - modelled.rungs["launch"])
