"""Throughput and memory against M for the three strategies, and two steps on one clock."""

from collections.abc import Callable, Iterator
from math import isnan
from typing import NamedTuple

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
from repro.harness.spec import slug
from repro.harness.statistics import interval
from repro.report import gantt
from repro.report.grid import Grid
from repro.report.ratio import NO_INTERVAL, ideal_over_k1
from repro.report.style import MARKERS, THEORY, grid, in_pairs, model_name, ticks

_COLOURS = {"single": "#6E6E6E", "naive": "#D55E00", "gpipe": "#0072B2"}
_WIDTHS = {"single": 1.6, "naive": 3.6, "gpipe": 1.6}  # so that naive shows below GPipe
_STYLES = ("-", "--", "-.")  # of the smallest K, the next one, and all others
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
    """Name, figure and caption of each; of several settings the one with the most runs is drawn."""
    by_point = runs_by_point(results)
    every = [point for point in points(results) if _is_finished(by_point, point)]
    if not every:
        return
    settings = [(point.where, point.remat) for point in every]
    setting = max(dict.fromkeys(settings), key=settings.count)
    drawn = [point for point in every if (point.where, point.remat) == setting]
    curves = _curves(by_point, drawn)
    yield (
        "throughput",
        throughput(curves),
        f"Throughput against M; bars are 95 % intervals over rounds ({NO_INTERVAL}). The ideal is "
        "that of the measured one device, times the speedup of equal stages with F:R:B = 1:1:2 and "
        "free messages.",
    )
    yield (
        "memory",
        memory(curves),
        "Peak memory of the fullest device against M, read in a step of its own that is not timed. "
        "Naive model parallelism has one micro-batch in flight, and GPipe has all M.",
    )
    for model in dict.fromkeys(point.model for point in drawn):
        yield (
            f"timeline_{slug(model)}",
            one_clock(results, by_point, [point for point in drawn if point.model == model]),
            "Naive model parallelism above GPipe on one clock, each a recorded step of median "
            "length. Both do the same work on the same micro-batches.",
        )


def _is_finished(by_point: Grid, point: Point) -> bool:
    """Whether a strategy was measured at a point."""
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


def throughput(curves: list[Curve]) -> Figure:
    """A panel for each model: examples per second against M, and the ideal of GPipe."""

    def draw(axes: Axes, curve: Curve, style: str) -> None:
        spreads = [interval([round_.throughput for round_ in run.rounds]) for run in curve.runs]
        # No interval where there are few rounds.
        down = [0.0 if isnan(low) else value - low for value, low, _ in spreads]
        up = [0.0 if isnan(high) else high - value for value, _, high in spreads]
        axes.errorbar(
            [run.M for run in curve.runs],
            [value for value, _, _ in spreads],
            [down, up],
            marker=MARKERS["measured"],
            linestyle=style,
            color=_COLOURS[curve.strategy],
            linewidth=_WIDTHS[curve.strategy],
            label=curve.label,
        )
        if curve.strategy == "gpipe":
            bases = _single(curves, curve.model)
            ideal = [
                base.throughput * ideal_over_k1(curve.K, base.M, "gpipe", base.remat)
                for base in bases
            ]
            name = f"{curve.label}, ideal"
            axes.plot(
                [base.M for base in bases], ideal, ":", color=THEORY, linewidth=1.2, label=name
            )

    return _against_m(curves, "examples/s, measured", draw)


def _single(curves: list[Curve], model: str) -> list[Run]:
    """The runs of a model on one device."""
    of_model = [
        curve.runs for curve in curves if (curve.model, curve.strategy) == (model, "single")
    ]
    return of_model[0] if of_model else []


def memory(curves: list[Curve]) -> Figure | None:
    """A panel for each model: the peak of the fullest device against M."""
    if not any(run.peak_gib_per_stage for curve in curves for run in curve.runs):
        return None

    def draw(axes: Axes, curve: Curve, style: str) -> None:
        axes.plot(
            [run.M for run in curve.runs],
            [1024 * run.peak_gib_max for run in curve.runs],
            marker=MARKERS["measured"],
            linestyle=style,
            color=_COLOURS[curve.strategy],
            linewidth=_WIDTHS[curve.strategy],
            label=curve.label,
        )

    return _against_m(curves, "peak of the fullest device (MiB), measured", draw)


def _against_m(
    curves: list[Curve], ylabel: str, draw: Callable[[Axes, Curve, str], None]
) -> Figure:
    """A panel for each model, in which `draw` draws each curve in its line style."""
    models = list(dict.fromkeys(curve.model for curve in curves))
    Ks = sorted({curve.K for curve in curves if curve.K > 1})
    figure, panels = in_pairs(len(models), 3.4)
    for axes, model in zip(panels, models, strict=True):
        of_model = [curve for curve in curves if curve.model == model]
        for curve in of_model:
            number = Ks.index(curve.K) if curve.K > 1 else 0
            draw(axes, curve, _STYLES[min(number, len(_STYLES) - 1)])
        runs = [run for curve in of_model for run in curve.runs]
        title = f"{model_name(model)}, N={runs[0].N}"
        axes.set(title=title, xlabel="M micro-batches", ylabel=ylabel)
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        ticks(axes, sorted({run.M for run in runs}))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return figure


def one_clock(results: Results, by_point: Grid, of_model: list[Point]) -> Figure | None:
    """The naive step above GPipe's at the M nearest to 4 that has both; None where none has."""
    for point in sorted(of_model, key=lambda point: (abs(point.M - _DRAWN_M), point.K)):
        naive, pipelined = (
            _step(results, by_point.run(*key_of(strategy, point)))
            for strategy in ("naive", "gpipe")
        )
        if naive is not None and pipelined is not None:
            return _two_steps(point, naive, pipelined)
    return None


def _step(results: Results, run: Run | None) -> Timeline | None:
    """The recorded step of a run."""
    return None if run is None else results.timeline(run)


def _two_steps(point: Point, naive: Timeline, pipelined: Timeline) -> Figure:
    """Two steps under each other, whose axes show as many seconds as the longer one takes."""
    figure, ((above,), (below,)) = grid(2, 1, 0.6 + 0.42 * point.K)
    longest = max(naive.step_time, pipelined.step_time)
    for axes, name, step in ((above, "naive", naive), (below, "GPipe", pipelined)):
        gantt.boxes(axes, step, 1e3, longest)
        idle = f"{step.bubble_over_total:.0%} of K x step idle (idle/total)"
        axes.set_title(f"{name}: {1e3 * step.step_time:.0f} ms, {idle}")
    below.set_xlabel("time (ms), measured")
    headline = f"{model_name(point.model)}, K={point.K}, M={point.M}"
    figure.suptitle(headline, x=0.01, ha="left", fontsize=11)
    gantt.legend(figure, pipelined)
    return figure
