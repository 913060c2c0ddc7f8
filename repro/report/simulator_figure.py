"""The simulator's error as a picture: every round, their median and interval, and the goal as a band."""

import statistics
from math import isnan
from typing import TYPE_CHECKING

from repro.report.compare import NO_INTERVAL, PLACE, Row, where
from repro.report.simulator import GOAL, Cell, cells
from repro.report.style import FIDELITIES, MARKERS, THEORY, in_pairs, model_name, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repro.harness.results import Results

_ASIDE = 0.22  # of a category: the cross stands so far to the right, the rounds so far to the left
CAPTION = (
    "Error of the simulated step over the measured one of the same round (simulated): faint dots are single rounds, a "
    f"triangle is their median with its bootstrap 95 % interval, {NO_INTERVAL}. A cross: the median with layers timed "
    "on all processes at once only."
)


def figure(results: "Results", rows: list[Row]) -> "Figure | None":
    """One panel a model and place, a category an M; measured cells alone."""
    runs = {(*(row[column] for column in PLACE), row["run"]) for row in rows}
    panels: dict[str, list[Cell]] = {}
    for cell in cells(results):
        row = cell.row
        if cell.counts not in ("", "known") and (*(row[column] for column in PLACE), row["run"]) in runs:
            panels.setdefault(f"{model_name(row['model'])}, K={row['K']} ({where(results, row)})", []).append(cell)
    if not panels:
        return None
    drawn, every = in_pairs(len(panels), 3.4)
    for axes, (title, some) in zip(every, panels.items(), strict=True):
        _panel(axes, title, some)
    bounds = [axes.get_ylim() for axes in every]
    for axes in every:
        axes.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    handles, labels = every[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return drawn


def _panel(axes: "Axes", title: str, some: list[Cell]) -> None:
    colour = FIDELITIES["simulated"]
    axes.axhspan(-GOAL, GOAL, color="#DDDDDD", alpha=0.6, linewidth=0, label=f"goal: within {GOAL:g} %")
    axes.axhline(0, color=THEORY, linewidth=0.8)
    rounds = [(at - _ASIDE, error) for at, cell in enumerate(some) for error in cell.errors[cell.counts]]
    axes.plot(*zip(*rounds, strict=True), "o", ms=4, mec="none", color="#444444", alpha=0.35, label="a round")
    spreads = [cell.error for cell in some]
    bars = [[0.0 if isnan(spread[k]) else abs(spread[0] - spread[k]) for spread in spreads] for k in (1, 2)]
    look = {"fmt": MARKERS["simulated"], "color": colour, "elinewidth": 1.4, "capsize": 3}
    axes.errorbar(range(len(some)), [spread[0] for spread in spreads], bars, label="median, 95 % interval", **look)
    before = [(n + _ASIDE, statistics.median(c.errors["together"])) for n, c in enumerate(some) if c.counts == "mixed"]
    if before:
        axes.plot(*zip(*before, strict=True), "x", color="#444444", label="layers timed together only")
    ticks(axes, list(range(len(some))), [str(cell.row["M"]) for cell in some])
    axes.set_xlim(-0.6, len(some) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set(title=title, xlabel="M micro-batches", ylabel="simulated over measured,\nminus 1 (%)")
