"""Curves: speedup against M, and the bubble against M; each over its ideal, which is made here.

A line without markers is theory; a marker tells the fidelity, and a colour tells K.
"""

from collections.abc import Callable
from functools import cache
from math import isnan, nan
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.frame import ratio_of
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import fidelities, matching, settings
from repro.report.framed import Estimate, error_bars, with_interval
from repro.report.style import MARKERS, in_pairs, legend, over_m, series_colour

# By which a fidelity's points are shifted on a logarithmic axis, so that none covers another.
_FACTOR = {"measured": 1.0, "emulated": 0.94, "simulated": 1.06}


@cache
def ideal(K: int, M: int, schedule: str, remat: str) -> Timeline | None:
    """This schedule with F:R:B = 1:1:2, equal stages and free messages.

    None if it is not ours, or if its ranks hold several stages, whose number is not named here. For
    "gpipe" with re-materialization always its step is `paper.theory`'s early form; with never,
    the plain one.
    """
    if schedule not in SCHEDULES or SCHEDULES[schedule].interleaved:
        return None
    return replay(
        make_schedule(schedule, K, M, remat), lambda action: theory.UNIT_COSTS[action.kind]
    )


def ideal_over_k1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal's speedup over one stage, which has no bubble, at the same N and M."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(1, M, schedule, remat)


def ideal_over_k2m1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal in Table 2's normalisation, at one fixed N."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(2, 1, schedule, remat)


def _ideal_rate(K: int, M: int, schedule: str, remat: str) -> float:
    """Mini-batches per time, in units of the forward work of the whole model and mini-batch."""
    timeline = ideal(K, M, schedule, remat)
    return nan if timeline is None else K * M / timeline.step_time


def speedup(results: Results, rows: list[Run]) -> Figure | None:
    """Speedup over K=1 at the same M: against M, a line for each K."""

    def values(run: Run) -> Estimate:
        return ratio_of(results, run, results.baseline(run, K=1))

    def theories(K: int, M: int, plan: tuple[str, str]) -> tuple[float, float]:
        return theory.speedup_over_k1(K, M, "plain"), ideal_over_k1(K, M, *plan)

    words = "speedup over K=1, same M", "plain ideal: K M/(M+K-1)"
    return _curves(results, rows, values, theories, *words)


def bubble(results: Results, rows: list[Run]) -> Figure | None:
    """Idle/total against M for every K, over (K-1)/(M+K-1) and the ideal of the same schedule."""

    def values(run: Run) -> Estimate:
        return 100 * run.idle_over_total, nan, nan

    def theories(K: int, M: int, plan: tuple[str, str]) -> tuple[float, float]:
        perfect = ideal(K, M, *plan)
        own = perfect.idle_over_total if perfect else nan
        return 100 * theory.bubble_over_total(K, M), 100 * own

    words = "idle/total (%)", "theory: (K-1)/(M+K-1)"
    return _curves(results, rows, values, theories, *words, top=60)


def _curves(
    results: Results,
    rows: list[Run],
    values: Callable[[Run], Estimate],
    theories: Callable[[int, int, tuple[str, str]], tuple[float, float]],
    ylabel: str,
    dashed: str,
    top: float = 0,
) -> Figure | None:
    """A panel for each setting: of each K both theories, and points with their intervals."""
    known = [run for run in rows if run.K > 1 and not isnan(values(run)[0])]
    every = settings(results, known)
    if not every:
        return None
    figure, panels = in_pairs(len(every), 2.9)
    for panel, setting in zip(panels, every, strict=True):
        Ms = sorted({run.M for run in setting.rows})
        for K in sorted({run.K for run in setting.rows}):
            look: dict[str, Any] = {"color": series_colour(K), "linewidth": 1.2}
            lines = zip(*(theories(K, M, setting.plan) for M in Ms), strict=True)
            for style, line in zip(("--", ":"), lines, strict=True):
                panel.plot(Ms, line, style, **look)
            runs = sorted(matching(setting.rows, K=K), key=lambda run: run.M)
            for fidelity in fidelities(runs):
                of_fidelity = matching(runs, fidelity=fidelity)
                points = pd.DataFrame({"M": [run.M * _FACTOR[fidelity] for run in of_fidelity]})
                points = with_interval(points, "y", map(values, of_fidelity))
                bars = [end.clip(lower=0) for end in error_bars(points, "y")]
                dots = {"marker": MARKERS[fidelity], "color": look["color"]}
                panel.errorbar(points["M"], points["y"], bars, **dots)
            panel.plot([], [], color=series_colour(K), label=f"K={K}")
        panel.set(title=setting.narrow, ylabel=ylabel)
        panel.set_ylim(0, max(top, panel.get_ylim()[1]) if top else None)
        over_m(panel, Ms)
        panel.legend(loc="best", handlelength=1.2)
    legend(figure, fidelities(known), (dashed, "--"), ("ideal", ":"))
    return figure
