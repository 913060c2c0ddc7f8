"""Curves: speedup against M, and the bubble against M; each over its ideal.

A line without markers is theory; a marker tells the fidelity, and a colour tells K.
"""

from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.harness.frame import ratio_of
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import Setting, fidelities, matching, settings
from repro.report.ratio import ideal, ideal_over_k1
from repro.report.style import MARKERS, in_pairs, legend, series_colour, ticks

# By which a fidelity's points are shifted on a logarithmic axis, so that none covers another.
_FACTOR = {"measured": 1.0, "emulated": 0.94, "simulated": 1.06}


def speedup(results: Results, rows: list[Run]) -> Figure | None:
    """Speedup over K=1 at the same M: against M, a line for each K."""

    def values(run: Run) -> tuple[float, float, float]:
        return ratio_of(results, run, results.baseline(run, K=1))

    known = [run for run in rows if run.K > 1 and not isnan(values(run)[0])]
    every = settings(results, known)
    if not every:
        return None
    figure, panels = in_pairs(len(every), 2.9)
    for panel, setting in zip(panels, every, strict=True):
        for K, runs, Ms in _stages(setting):
            look: dict[str, Any] = {"color": series_colour(K), "linewidth": 1.2}
            panel.plot(Ms, [theory.speedup_over_k1(K, M, "plain") for M in Ms], "--", **look)
            panel.plot(Ms, [ideal_over_k1(K, M, *setting.plan) for M in Ms], ":", **look)
            for fidelity in fidelities(runs):
                of_fidelity = matching(runs, fidelity=fidelity)
                points = [(_place(run), *values(run)) for run in of_fidelity]
                xs, ys, lows, highs = (list(part) for part in zip(*points, strict=True))
                # No bar where there are too few rounds for an interval.
                down = [max(0.0, y - low) for y, low in zip(ys, lows, strict=True)]
                up = [max(0.0, high - y) for y, high in zip(ys, highs, strict=True)]
                panel.errorbar(xs, ys, (down, up), marker=MARKERS[fidelity], color=look["color"])
        _finish(panel, setting)
        panel.set(ylabel="speedup over K=1, same M", ylim=(0, None))
    legend(figure, fidelities(known), ("plain ideal: K M/(M+K-1)", "--"), ("ideal", ":"))
    return figure


def bubble(results: Results, rows: list[Run]) -> Figure | None:
    """Idle/total against M for every K, over (K-1)/(M+K-1) and the ideal of the same schedule."""
    known = [run for run in rows if run.K > 1 and run.bubble_idle_over_total >= 0]
    every = settings(results, known)
    if not every:
        return None
    figure, panels = in_pairs(len(every), 2.9)
    for panel, setting in zip(panels, every, strict=True):
        for K, runs, Ms in _stages(setting):
            look: dict[str, Any] = {"color": series_colour(K), "linewidth": 1.2}
            panel.plot(Ms, [100 * theory.bubble_over_total(K, M) for M in Ms], "--", **look)
            perfect = [(M, ideal(K, M, *setting.plan)) for M in Ms]
            own = [(M, 100 * step.bubble_over_total) for M, step in perfect if step]
            panel.plot([M for M, _ in own], [share for _, share in own], ":", **look)
            for fidelity in fidelities(runs):
                of_fidelity = matching(runs, fidelity=fidelity)
                shares = [100 * run.bubble_idle_over_total for run in of_fidelity]
                xs = [_place(run) for run in of_fidelity]
                panel.plot(xs, shares, MARKERS[fidelity], color=look["color"], markersize=5)
        _finish(panel, setting)
        panel.set(ylabel="idle/total (%)", ylim=(0, max(60, panel.get_ylim()[1])))
    legend(figure, fidelities(known), ("theory: (K-1)/(M+K-1)", "--"), ("ideal", ":"))
    return figure


def _stages(setting: Setting) -> list[tuple[int, list[Run], list[int]]]:
    """Each K with its runs by M, and all M of the setting."""
    Ms = sorted({run.M for run in setting.rows})
    runs = sorted(setting.rows, key=lambda run: run.M)
    return [(K, matching(runs, K=K), Ms) for K in sorted({run.K for run in runs})]


def _place(run: Run) -> float:
    return run.M * _FACTOR[run.fidelity]


def _finish(axes: Axes, setting: Setting) -> None:
    for K in sorted({run.K for run in setting.rows}):
        axes.plot([], [], color=series_colour(K), label=f"K={K}")
    axes.set(title=setting.narrow, xlabel="M micro-batches")
    axes.set_xscale("log", base=2)
    ticks(axes, sorted({run.M for run in setting.rows}))
    axes.legend(loc="best", handlelength=1.2)
