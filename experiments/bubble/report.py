"""The bubble as curves, utilisation beside a book chapter's points, and one slow stage as a timeline."""

import textwrap
from collections.abc import Iterator
from math import isnan
from typing import TYPE_CHECKING, Any, Literal

from experiments.bubble import idle, slow
from experiments.bubble.idle import NAME, TIMED, Points, fits, odd, points
from experiments.bubble.slow import caption, factor, middle, position, walked
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.paper import theory, utilisation
from repro.report import gantt
from repro.report.compare import beside_paper
from repro.report.rounds import step_over
from repro.report.style import FIDELITIES, MARKERS, QUOTED, THEORY, grid, in_pairs, legend, ticks
from repro.report.table import Table
from repro.report.texts import IDEAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FOLDED = ("bubble_points*",)
_FORMS: tuple[tuple[str, Literal["--", ":"]], ...] = (
    ("plain: (K-1)/(M+K-1)", "--"),
    ("ideal: recomputes early", ":"),
)
_SIZES = {"simulated": 8, "emulated": 5, "measured": 4.5}  # the larger ones lie beneath
# times M, so that none covers another
_ASIDE = {"quoted": 1 / 1.07, "simulated": 1.0, "emulated": 1.07}


def tables(results: Results) -> list[Table]:
    """Idle time, utilisation, one slow stage, and how long a pipeline takes to fill."""
    return [*idle.tables(results), *slow.tables(results)]


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """Name, figure and caption of each; of several places the one with the most runs is drawn."""
    done = {row.id for row in rows}
    found = max(
        points(results), key=lambda one: sum(row.id in done for row in _all(one)), default=None
    )
    if found is None:
        return
    yield (
        "curves",
        curves(found),
        "Idle/total against M: the paper's form, that of the ideal, and what clocks show; the "
        "vertical line is M=4K, where the paper calls the bubble almost negligible. Emulated and "
        f"measured idle time holds set-up and the runtime too. {IDEAL}",
    )
    if beside_paper(results, NAME):
        words = (
            "Utilisation, 1 minus idle/total. Quoted: printed in a book chapter, not in the paper; "
        )
        words += "ringed where it is not of its own formula. Points stand a little apart sideways."
        yield "utilisation", utilised(found), f"{words} {odd()}"
    for fidelity in TIMED:
        row = middle(found, fidelity)
        timeline = walked(results, row) if row else None
        if row is not None and timeline is not None:
            base = found.equal.get(fidelity, {}).get((row.K, row.M))
            over = step_over(results, row, base)[0]
            yield f"slow_{fidelity}", _slow(results, row, timeline), caption(results, row, over)


def _all(one: Points) -> list[Run]:
    return [row for found in one.equal.values() for row in found.values()]


def _slow(results: Results, row: Run, timeline: Timeline) -> "Figure":
    """A step in which all wait for one stage."""
    forward = row.spec.model_args["forward_s"]
    stage = forward.index(max(forward))
    at = f"{position(row.K, stage)}; K={row.K}, M={row.M}"
    words = f"One stage takes {factor(results, row):g} times as long: {at}"
    return gantt.draw(timeline, textwrap.fill(words, 84), row.fidelity)


def curves(one: Points) -> "Figure | None":
    """One panel a K."""
    Ks = sorted({K for found in one.equal.values() for K, _ in found})
    if not any(row.status == "done" for row in _all(one)):
        return None
    figure, panels = in_pairs(len(Ks), 2.7)
    for panel, K in zip(panels, Ks, strict=True):
        _curve(panel, one, K)
    legend(figure, _present(one), *_FORMS, coloured=True)
    return figure


def _present(one: Points) -> list[str]:
    return [
        name
        for name, found in one.equal.items()
        if any(row.status == "done" for row in found.values())
    ]


def _curve(axes: "Axes", one: Points, K: int) -> None:
    Ms = sorted({M for found in one.equal.values() for k, M in found if k == K})
    dense = _dense(Ms[0], Ms[-1])
    axes.plot(
        dense,
        [100 * theory.bubble_over_total(K, M) for M in dense],
        "--",
        color=THEORY,
        linewidth=1.1,
    )
    axes.plot(
        dense, [100 * theory.bubble(K, M, "early") for M in dense], ":", color=THEORY, linewidth=1.4
    )
    for fidelity in (*TIMED, "measured"):
        shares = {M: 100 * one.idle(fidelity, K, M) for M in Ms}
        _markers(axes, {M: share for M, share in shares.items() if not isnan(share)}, fidelity)
    axes.axvline(4 * K, color="#888888", linewidth=0.9)
    axes.text(4 * K * 1.06, 97, f"M=4K={4 * K}", fontsize=8, color="#555555", va="top")
    axes.set_xscale("log", base=2)
    ticks(axes, Ms)
    axes.set_ylim(0, 100)
    axes.set(title=f"K={K}", xlabel="M micro-batches", ylabel="idle/total (%)")


def _dense(first: int, last: int) -> list[int]:
    return sorted(
        {
            first,
            last,
            *(round(2 ** (n / 4)) for n in range(80) if first <= round(2 ** (n / 4)) <= last),
        }
    )


def _markers(axes: "Axes", shares: dict[float, float], fidelity: str) -> None:
    look: dict[str, Any] = {
        "color": FIDELITIES[fidelity],
        "markersize": _SIZES[fidelity],
        "linestyle": "",
    }
    axes.plot(list(shares), list(shares.values()), MARKERS[fidelity], **look)


def utilised(one: Points) -> "Figure | None":
    """The chapter's points for K=4 and 8, the curves they are said to be on, and ours."""
    figure, (panels,) = grid(1, 2, 3.5)
    Ks = sorted({point.K for point in utilisation()})
    for panel, K in zip(panels, Ks, strict=True):
        _utilised(panel, one, K)
    plain = ("plain: M/(M+K-1)", _FORMS[0][1])
    legend(
        figure,
        ["quoted", *(name for name in _present(one) if name in TIMED)],
        plain,
        _FORMS[1],
        coloured=True,
    )
    return figure


def _utilised(axes: "Axes", one: Points, K: int) -> None:
    printed = [point for point in utilisation() if point.K == K]
    Ms = [point.M for point in printed]
    dense = _dense(Ms[0], Ms[-1])
    axes.plot(
        dense,
        [100 * (1 - theory.bubble_over_total(K, M)) for M in dense],
        "--",
        color=THEORY,
        linewidth=1.1,
    )
    axes.plot(
        dense,
        [100 * (1 - theory.bubble(K, M, "early")) for M in dense],
        ":",
        color=THEORY,
        linewidth=1.4,
    )
    for fidelity in TIMED:
        shares = {M: 100 * (1 - one.idle(fidelity, K, M)) for M in Ms}
        _markers(
            axes,
            {_ASIDE[fidelity] * M: share for M, share in shares.items() if not isnan(share)},
            fidelity,
        )
    aside = [_ASIDE["quoted"] * M for M in Ms]
    axes.plot(
        aside,
        [point.percent for point in printed],
        MARKERS["quoted"],
        color=QUOTED,
        markersize=5,
        linestyle="",
    )
    for point in printed:
        if not fits(point):
            at = (_ASIDE["quoted"] * point.M, point.percent)
            axes.plot(*at, "o", mfc="none", mec="#222222", markersize=13, linestyle="")
            own = 100 * (1 - theory.bubble_over_total(K, point.M))
            words = f"printed {point.percent:g} %;\nits formula gives {own:.0f} %"
            axes.annotate(words, at, (14, -4), textcoords="offset points", fontsize=8, va="top")
    axes.set_xscale("log", base=2)
    ticks(axes, Ms)
    axes.set_ylim(0, 100)
    axes.set(title=f"K={K}", xlabel="M micro-batches", ylabel="utilisation (%)")
