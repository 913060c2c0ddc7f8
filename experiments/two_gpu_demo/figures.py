"""Throughput and memory against M for the three strategies, and two steps on one clock."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.two_gpu_demo.points import (
    STRATEGY_NAMES,
    Point,
    key_of,
    points,
    runs_by_point,
)
from experiments.two_gpu_demo.runs import STRATEGIES
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.harness.statistics import interval
from repro.report import gantt
from repro.report.grid import Grid
from repro.report.ratio import NO_INTERVAL, ideal_over_k1
from repro.report.style import MARKERS, THEORY, grid, model_name, series_colour, ticks

# Naive is wide and hollow, so that it shows below GPipe where both are equal.
_LOOKS: dict[str, dict[str, Any]] = {
    "single": {"linestyle": "-.", "markerfacecolor": "white"},
    "naive": {"linestyle": "--", "markerfacecolor": "white", "markersize": 9, "linewidth": 2.6},
    "gpipe": {"linestyle": "-", "markersize": 5},
}
_DRAWN_M = 4  # micro-batches of the timelines, as in the paper's Figure 2


class Curve(NamedTuple):
    """The finished runs of a model with one strategy on K devices, by M."""

    model: str
    strategy: str
    K: int
    runs: list[Run]

    @property
    def label(self) -> str:
        """`one device`, or `GPipe, K=2`."""
        name = STRATEGY_NAMES[self.strategy]
        return name if self.strategy == "single" else f"{name}, K={self.K}"


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    by_point = runs_by_point(results)
    every = [point for point in points(results) if _is_finished(by_point, point)]
    if not every:
        return
    settings = [(point.where, point.remat) for point in every]
    setting = max(dict.fromkeys(settings), key=settings.count)
    drawn = [point for point in every if (point.where, point.remat) == setting]
    curves = _curves(by_point, drawn)
    yield (
        "curves",
        against_m(curves),
        f"Throughput and memory against M: bars are 95 % intervals over rounds ({NO_INTERVAL}), "
        "and the ideal has equal stages, F:R:B = 1:1:2 and free messages. Naive model parallelism "
        "has one micro-batch in flight, and GPipe has all M.",
    )
    yield (
        "timeline",
        one_clock(results, by_point, drawn),
        "Naive model parallelism above GPipe on one clock, each a recorded step of median length. "
        "Both do the same work on the same micro-batches.",
    )


def _is_finished(by_point: Grid, point: Point) -> bool:
    runs = [by_point.run(*key_of(strategy, point)) for strategy in STRATEGIES]
    return any(run is not None and run.done for run in runs)


def _curves(by_point: Grid, drawn: list[Point]) -> list[Curve]:
    """A curve for each model, strategy and K; one device has K=1."""
    curves: dict[tuple[str, str, int], dict[int, Run]] = {}
    for point in drawn:
        for strategy in STRATEGIES:
            run = by_point.run(*key_of(strategy, point))
            if run is not None and run.done:
                curves.setdefault((point.model, strategy, run.K), {})[run.M] = run
    return [
        Curve(*key, [of_curve[M] for M in sorted(of_curve)]) for key, of_curve in curves.items()
    ]


def against_m(curves: list[Curve]) -> Figure:
    models = list(dict.fromkeys(curve.model for curve in curves))
    figure, panels = grid(len(models), 2, 2.6)
    for (left, right), model in zip(panels, models, strict=True):
        of_model = [curve for curve in curves if curve.model == model]
        for curve in of_model:
            look: dict[str, Any] = {
                "marker": MARKERS["measured"],
                "color": series_colour(curve.K),
                "label": curve.label,
                **_LOOKS[curve.strategy],
            }
            _throughput(left, curve, look)
            if curve.strategy == "gpipe":
                _ideal(left, curve, _single(curves, model))
            if any(run.peak_gib_per_stage for run in curve.runs):
                peaks = [1024 * run.peak_gib_max for run in curve.runs]
                right.plot([run.M for run in curve.runs], peaks, **look)
        runs = [run for curve in of_model for run in curve.runs]
        left.set(title=f"{model_name(model)}, N={runs[0].N}", ylabel="examples/s, measured")
        right.set(title="the fullest device", ylabel="peak (MiB), measured")
        for axes in (left, right):
            axes.set(xscale="log", xlabel="M micro-batches", ylim=(0, None))
            axes.set_xscale("log", base=2)
            ticks(axes, sorted({run.M for run in runs}))
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return figure


def _throughput(axes: Axes, curve: Curve, look: Mapping[str, Any]) -> None:
    """Points with intervals; without one where there are few rounds."""
    spreads = [interval([round_.throughput for round_ in run.rounds]) for run in curve.runs]
    down = [0.0 if isnan(low) else value - low for value, low, _ in spreads]
    up = [0.0 if isnan(high) else high - value for value, _, high in spreads]
    Ms = [run.M for run in curve.runs]
    axes.errorbar(Ms, [value for value, _, _ in spreads], [down, up], **look)


def _ideal(axes: Axes, curve: Curve, bases: list[Run]) -> None:
    """The throughput of one device, times the speedup of equal stages."""
    ideal = [
        base.throughput * ideal_over_k1(curve.K, base.M, "gpipe", base.remat) for base in bases
    ]
    label = f"{curve.label}, ideal"
    axes.plot([base.M for base in bases], ideal, ":", color=THEORY, linewidth=1.2, label=label)


def _single(curves: list[Curve], model: str) -> list[Run]:
    of_model = [
        curve.runs for curve in curves if (curve.model, curve.strategy) == (model, "single")
    ]
    return of_model[0] if of_model else []


def one_clock(results: Results, by_point: Grid, drawn: list[Point]) -> Figure | None:
    """The naive step above GPipe's at the M nearest to 4 that has both; None where none has."""
    for point in sorted(drawn, key=lambda point: (abs(point.M - _DRAWN_M), point.K)):
        naive, pipelined = (
            _step(results, by_point.run(*key_of(strategy, point)))
            for strategy in ("naive", "gpipe")
        )
        if naive is not None and pipelined is not None:
            headline = f"{model_name(point.model)}, K={point.K}, M={point.M}"
            return gantt.draw(headline, [("naive", naive), ("GPipe", pipelined)], "measured")
    return None


def _step(results: Results, run: Run | None) -> Timeline | None:
    return None if run is None else results.timeline(run)
