"""Curves: speedup against K and M, and the bubble against M; each over its ideal.

A line without markers is theory; a marker tells the fidelity, and a colour tells K or M.
"""

from math import isnan
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import Setting, fidelities, matching, settings
from repro.report.ratio import (
    ITSELF,
    Ratio,
    ideal,
    ideal_over_k1,
    over_k1,
)
from repro.report.style import MARKERS, grid, in_pairs, legend, series_colour, ticks

# By which a fidelity's points are shifted on a logarithmic axis, so that none covers another.
_FACTOR = {"measured": 1.0, "emulated": 0.94, "simulated": 1.06}
Point = tuple[Run, Ratio]
Axis = Literal["K", "M"]


def speedup(results: Results, rows: list[Run]) -> Figure | None:
    """Speedup over K=1 at the same M: against K with a line for each M, and the other way round."""
    panels = []
    for setting in settings(results, rows):
        ratios = [(run, over_k1(results, run)) for run in setting.rows]
        points = [(run, ratio) for run, ratio in ratios if not isnan(ratio.value)]
        if any(run.K > 1 for run, _ in points):
            panels.append((setting, points))
    if not panels:
        return None
    figure, axes = grid(len(panels), 2, 2.9)
    for (left, right), (setting, points) in zip(axes, panels, strict=True):
        _against(left, points, setting, "K")
        _against(right, points, setting, "M")
        left.set(title=setting.narrow, xlabel="K stages", ylabel="speedup over K=1, same M")
        right.set(title="the same, against M", xlabel="M micro-batches")
        right.set_xscale("log", base=2)
        ticks(left, _values(points, "K"))
        ticks(right, _values(points, "M"))
    present = fidelities(run for _, points in panels for run, _ in points)
    legend(figure, present, ("plain ideal: K M/(M+K-1)", "--"), ("ideal", ":"))
    return figure


def _against(axes: Axes, points: list[Point], setting: Setting, x: Axis) -> None:
    """Our points over `x`, a line for each value of the other letter, and both ideals."""
    line: Axis = "M" if x == "K" else "K"
    xs = _values(points, x)
    for value in _values(points, line):
        if line == "K" and value == 1:
            axes.axhline(1, color=series_colour(1), linewidth=1, label="K=1")
            continue
        places = [(at, value) if x == "K" else (value, at) for at in xs]
        plain = [theory.speedup_over_k1(K, M, "plain") for K, M in places]
        perfect = [ideal_over_k1(K, M, *setting.plan) for K, M in places]
        axes.plot(xs, plain, "--", color=series_colour(value), linewidth=1.1)
        axes.plot(xs, perfect, ":", color=series_colour(value), linewidth=1.3)
        on_line = [(run, ratio) for run, ratio in points if getattr(run, line) == value]
        on_line.sort(key=lambda point: getattr(point[0], x))
        for fidelity in fidelities(run for run, _ in points):
            drawn = [(run, ratio) for run, ratio in on_line if run.fidelity == fidelity]
            name = f"{line}={value}"
            axes.errorbar(
                [getattr(run, x) for run, _ in drawn],
                [ratio.value for _, ratio in drawn],
                _errors(drawn),
                marker=MARKERS[fidelity],
                color=series_colour(value),
                label=name if fidelity == "measured" else f"{name}, {fidelity}",
            )
    axes.legend(loc="upper left", handlelength=1.2)
    axes.set_ylim(bottom=0)


def _errors(points: list[Point]) -> list[list[float]] | None:
    """Distances down and up from each value to the ends of its interval, 0 where there is none.

    None where no point has an interval.
    """
    down, up = [], []
    for _, ratio in points:
        known = not isnan(ratio.low)
        down.append(ratio.value - ratio.low if known else 0)
        up.append(ratio.high - ratio.value if known else 0)
    if all(isnan(ratio.low) or ratio.baseline == ITSELF for _, ratio in points):
        return None
    return [down, up]


def bubble(results: Results, rows: list[Run]) -> Figure | None:
    """Idle/total against M for every K, over (K-1)/(M+K-1) and the ideal of the same schedule."""
    known = [run for run in rows if run.K > 1 and run.bubble_idle_over_total >= 0]
    every = settings(results, known)
    if not every:
        return None
    figure, panels = in_pairs(len(every), 2.9)
    for panel, setting in zip(panels, every, strict=True):
        _bubble_panel(panel, setting)
        panel.set(title=setting.narrow, xlabel="M micro-batches", ylabel="idle/total (%)")
    legend(figure, fidelities(rows), ("theory: (K-1)/(M+K-1)", "--"), ("ideal", ":"))
    return figure


def _bubble_panel(axes: Axes, setting: Setting) -> None:
    Ms = sorted({run.M for run in setting.rows})
    last = max(Ms[-1], Ms[0] + 3)
    # The schedules of many micro-batches take long to replay, so only every fourth of these.
    dense = [M for M in range(Ms[0], last + 1) if M <= 16 or M % 4 == 0 or last == M]
    for K in sorted({run.K for run in setting.rows}):
        colour = series_colour(K)
        plain = [100 * theory.bubble_over_total(K, M) for M in dense]
        axes.plot(dense, plain, "--", color=colour, linewidth=1.1)
        perfect = [(M, ideal(K, M, *setting.plan)) for M in dense]
        own = [(M, 100 * step.bubble_over_total) for M, step in perfect if step is not None]
        axes.plot(
            [M for M, _ in own], [share for _, share in own], ":", color=colour, linewidth=1.3
        )
        for fidelity in fidelities(setting.rows):
            runs = matching(setting.rows, K=K, fidelity=fidelity)
            shares = [100 * run.bubble_idle_over_total for run in runs]
            xs = [run.M * _FACTOR[fidelity] for run in runs]
            axes.plot(xs, shares, MARKERS[fidelity], color=colour, markersize=5)
        axes.plot([], [], color=colour, label=f"K={K}")
    axes.set_xscale("log", base=2)
    ticks(axes, Ms)
    axes.set_ylim(0, max(60, axes.get_ylim()[1]))
    axes.legend(loc="upper right", handlelength=1.2)


def _values(points: list[Point], letter: Axis) -> list[int]:
    return sorted({getattr(run, letter) for run, _ in points})
