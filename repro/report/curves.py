"""Curves: speedup against K and M, Table 2's cells, bubble fraction; each over its ideal.

A line without markers is theory; a marker tells the fidelity; K has one colour and M another, and
where neither has one a colour tells the fidelity.
"""

from collections.abc import Callable
from math import isnan
from typing import TYPE_CHECKING, Any

from repro.harness.results import Results, Run
from repro.paper import table2 as paper_table2
from repro.paper import theory
from repro.report.compare import Setting, beside_paper, fidelities, settings
from repro.report.ratio import (
    ITSELF,
    Ratio,
    ideal,
    ideal_over_k1,
    ideal_over_k2m1,
    over_k1,
    over_k2m1,
)
from repro.report.style import (
    FIDELITIES,
    MARKERS,
    QUOTED,
    THEORY,
    grid,
    in_pairs,
    k_colour,
    legend,
    m_colour,
    ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# of a cell, so that none covers another
_ASIDE = {"measured": 0.0, "emulated": 0.07, "simulated": 0.2}
_STRETCH = {"measured": 1.0, "emulated": 0.94, "simulated": 1.06}  # the same on a logarithmic axis
Point = tuple[Run, Ratio]


def speedup(results: Results, rows: list[Run]) -> "Figure | None":
    """Speedup over K=1 at the same M: against K (a line for each M) and against M (a line for each K)."""
    made = [(setting, _ratios(results, setting.rows)) for setting in settings(results, rows)]
    made = [(setting, points) for setting, points in made if any(row.K > 1 for row, _ in points)]
    if not made:
        return None
    figure, axes = grid(len(made), 2, 3.4)
    for (left, right), (setting, points) in zip(axes, made, strict=True):
        _against(left, points, setting, "K", "M", m_colour)
        _against(right, points, setting, "M", "K", k_colour)
        left.set(title=setting.narrow, xlabel="K stages", ylabel="speedup over K=1, same M")
        right.set(title="the same, against M", xlabel="M micro-batches")
        right.set_xscale("log", base=2)
        ticks(left, _values(points, "K"))
        ticks(right, _values(points, "M"))
    plain = ("plain ideal: K M/(M+K-1)", "--")
    legend(
        figure, fidelities(row for _, points in made for row, _ in points), plain, ("ideal", ":")
    )
    return figure


def _ratios(results: Results, rows: list[Run]) -> list[Point]:
    """Each row with its speedup over K=1; those without a baseline left out."""
    points = [(row, over_k1(results, row)) for row in rows]
    return [(row, ratio) for row, ratio in points if not isnan(ratio.value)]


def _against(
    axes: "Axes",
    points: list[Point],
    setting: Setting,
    x: str,
    line: str,
    colour: Callable[[int], Any],
) -> None:
    """Our points of every value of `line` over `x`, and both ideals in the same colour."""
    xs = _values(points, x)
    for value in _values(points, line):
        if line == "K" and value == 1:
            axes.axhline(1, color=k_colour(1), linewidth=1, label="K=1")
            continue
        places = [(at, value) if x == "K" else (value, at) for at in xs]
        plain = [theory.speedup_over_k1(K, M, "plain") for K, M in places]
        own = [ideal_over_k1(K, M, *setting.plan) for K, M in places]
        axes.plot(xs, plain, "--", color=colour(value), linewidth=1.1)
        axes.plot(xs, own, ":", color=colour(value), linewidth=1.3)
        for fidelity in fidelities(row for row, _ in points):
            some = [
                point
                for point in points
                if getattr(point[0], line) == value and point[0].fidelity == fidelity
            ]
            _line(
                axes,
                sorted(some, key=lambda point: getattr(point[0], x)),
                x,
                fidelity,
                colour(value),
                f"{line}={value}",
            )
    axes.legend(loc="upper left", handlelength=1.2)
    axes.set_ylim(bottom=0)


def _line(
    axes: "Axes", points: list[Point], x: str, fidelity: str, colour: Any, label: str
) -> None:
    xs, ys = [getattr(row, x) for row, _ in points], [ratio.value for _, ratio in points]
    axes.errorbar(
        xs,
        ys,
        _errors(points),
        marker=MARKERS[fidelity],
        color=colour,
        label=_words(label, fidelity),
    )


def _words(label: str, fidelity: str) -> str:
    return label if fidelity == "measured" else f"{label}, {fidelity}"


def _errors(points: list[Point]) -> list[list[float]] | None:
    """Distances down and up from each value to its interval, 0 where there is none; None where none has one."""
    if all(isnan(ratio.low) or ratio.baseline == ITSELF for _, ratio in points):
        return None
    intervals = [
        (r.value, r.value, r.value) if isnan(r.low) else (r.low, r.value, r.high) for _, r in points
    ]
    return [[mid - low for low, mid, _ in intervals], [high - mid for _, mid, high in intervals]]


def cells(results: Results, rows: list[Run]) -> "Figure | None":
    """Table 2 as dots: quoted, ours and ideal for every (K, M), all over K=2, M=1; one panel a model."""
    found = settings(results, [row for row in rows if row.experiment == "table2" and row.K > 1])
    if not found:
        return None
    quoting = beside_paper(results, "table2")
    figure, axes = grid(len(found), 1, 2.9)
    for (panel,), setting in zip(axes, found, strict=True):
        _cells_panel(panel, results, setting, quoting)
    legend(
        figure, {*(["quoted"] if quoting else []), *fidelities(rows)}, ("ideal", "-"), coloured=True
    )
    return figure


def _cells_panel(axes: "Axes", results: Results, setting: Setting, quoting: bool) -> None:
    printed = paper_table2() if quoting else []
    quoted = {(cell.K, cell.M): cell.value for cell in printed if cell.model == setting.model}
    places = sorted({*quoted, *((row.K, row.M) for row in setting.rows)})
    at = {place: float(index) for index, place in enumerate(places)}
    for place, x in at.items():
        axes.hlines(
            ideal_over_k2m1(*place, *setting.plan), x - 0.32, x + 0.32, color=THEORY, linewidth=1.3
        )
    axes.plot(
        [at[place] - 0.14 for place in quoted],
        list(quoted.values()),
        MARKERS["quoted"],
        color=QUOTED,
    )
    for row in setting.rows:
        point = (row, over_k2m1(results, row))
        if not isnan(point[1].value):
            x = at[row.K, row.M] + _ASIDE[row.fidelity]
            look: dict[str, Any] = {
                "marker": MARKERS[row.fidelity],
                "color": FIDELITIES[row.fidelity],
            }
            axes.errorbar(x, point[1].value, _errors([point]), **look)
    ticks(axes, list(at.values()), [f"K={K}\nM={M}" for K, M in places])
    axes.set(title=setting.wide, ylabel="throughput over K=2, M=1")
    axes.set_ylim(bottom=0)


def bubble(results: Results, rows: list[Run]) -> "Figure | None":
    """Bubble fraction (idle/total) against M for every K, over (K-1)/(M+K-1) and this schedule's own ideal."""
    found = settings(
        results, [row for row in rows if row.K > 1 and row.bubble_idle_over_total >= 0]
    )
    if not found:
        return None
    figure, panels = in_pairs(len(found), 3.4)
    for panel, setting in zip(panels, found, strict=True):
        _bubble_panel(panel, setting)
        panel.set(title=setting.narrow, xlabel="M micro-batches", ylabel="idle/total (%)")
    legend(figure, fidelities(rows), ("theory: (K-1)/(M+K-1)", "--"), ("ideal", ":"))
    return figure


def _bubble_panel(axes: "Axes", setting: Setting) -> None:
    Ms = sorted({row.M for row in setting.rows})
    last = max(Ms[-1], Ms[0] + 3)
    dense = [*range(Ms[0], min(last, 16)), *range(max(Ms[0], 16), last, 4), last]
    for K in sorted({row.K for row in setting.rows}):
        colour = k_colour(K)
        axes.plot(
            dense,
            [100 * theory.bubble_over_total(K, M) for M in dense],
            "--",
            color=colour,
            linewidth=1.1,
        )
        own = [100 * one.bubble_over_total for M in dense if (one := ideal(K, M, *setting.plan))]
        axes.plot(dense[: len(own)], own, ":", color=colour, linewidth=1.3)
        for fidelity in fidelities(setting.rows):
            points = [row for row in setting.rows if (row.K, row.fidelity) == (K, fidelity)]
            shares = [100 * row.bubble_idle_over_total for row in points]
            xs = [row.M * _STRETCH[fidelity] for row in points]
            axes.plot(xs, shares, MARKERS[fidelity], color=colour, markersize=5)
        axes.plot([], [], color=colour, label=f"K={K}")
    axes.set_xscale("log", base=2)
    ticks(axes, Ms)
    axes.set_ylim(0, max(60, axes.get_ylim()[1]))
    axes.legend(loc="upper right", handlelength=1.2)


def _values(points: list[Point], column: str) -> list[int]:
    return sorted({getattr(row, column) for row, _ in points})
