"""Table 3 as bars, and the step against the speed of the link."""

from collections.abc import Iterator
from math import inf, isnan
from typing import TYPE_CHECKING

from repro.report.compare import NO_INTERVAL, Row, fidelities, where
from repro.report.rounds import parts
from repro.report.style import MARKERS, grid, model_name, ticks
from repro.report.table3 import KS, M, Series, ideal, over_k2, quoted, series
from repro.report.table3_links import COST, Slowed, sentences, slowed, speed_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repro.harness.results import Results

_BARS = {  # no K's colour: here a colour is a fidelity
    "quoted": "#CC79A7",
    "measured": "#222222",
    "emulated": "#56B4E9",
    "simulated": "#0072B2",
    "ideal": "#D9D9D9",
}
_LINES = {"amoebanet-d": "#D55E00", "transformer": "#0072B2"}


def pictures(results: "Results", _rows: list[Row]) -> "Iterator[tuple[str, Figure | None, str]]":
    """Name, figure and caption of each."""
    yield (
        "bars",
        bars(results),
        f"Throughput over K=2 at M={M}: quoted, ours and the ideal (simulated: equal stages, free messages).",
    )
    words = f"Measured small: the step over that of the link left alone, within rounds; {NO_INTERVAL}."
    yield "throttled", throttled(results), " ".join([words, *sentences(results)])


def bars(results: "Results") -> "Figure | None":
    """One panel a model: for each K quoted, every fidelity that there is, ideal."""
    found = [one for one in series(results) if any(row["status"] == "done" for row in one.rows)]
    full = [one for one in found if one.papers_size]
    found = full or found
    if not found:
        return None
    figure, axes = grid((len(found) + 1) // 2, 2, 3.4)
    panels = [panel for line in axes for panel in line]
    for panel in panels[len(found) :]:
        panel.set_visible(False)
    handles = {}
    for panel, one in zip(panels, found, strict=False):
        _panel(panel, results, one)
        handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    ordered = [name for name in _BARS if name in handles]
    figure.legend([handles[name] for name in ordered], ordered, loc="outside lower center", ncols=len(ordered))
    return figure


def _panel(axes: "Axes", results: "Results", one: Series) -> None:
    done = [row for row in one.rows if row["status"] == "done" and row["K"] in KS]
    heights = {"quoted": {K: quoted(one.model, K) for K in KS}}
    for fidelity in fidelities(done):
        heights[fidelity] = {row["K"]: over_k2(results, row).value for row in done if row["fidelity"] == fidelity}
    heights["ideal"] = {K: ideal(K) for K in KS}
    width = 0.84 / len(heights)
    for index, name in enumerate(name for name in _BARS if name in heights):
        at = {n: K for n, K in enumerate(KS) if not isnan(heights[name].get(K, float("nan")))}
        places = [n + (index - (len(heights) - 1) / 2) * width for n in at]
        values = [heights[name][K] for K in at.values()]
        drawn = axes.bar(places, values, width * 0.94, color=_BARS[name], label=name)
        axes.bar_label(drawn, [f"{value:.2f}" for value in values], fontsize=7.5, padding=1.5)
    ticks(axes, list(range(len(KS))), [f"K={K}" for K in KS])
    axes.set(title=one.title, ylabel="throughput over K=2")
    axes.grid(axis="x", visible=False)


def throttled(results: "Results") -> "Figure | None":
    """Step over that of the link left alone against the link's speed, a line a model and place."""
    groups = [[one for one in some if not isnan(one.ratio[0])] for some in slowed(results)]
    groups = [some for some in groups if len(some) > 1]
    if not groups:
        return None
    figure, ((axes, right),) = grid(1, 2, 3.4)
    speeds = sorted({one.speed for some in groups for one in some if one.speed < inf})
    alone = 10 * speeds[-1]
    for some in groups:
        _line(axes, some, alone, f"{model_name(some[0].row['model'])}, {where(results, some[0].row)}")
    axes.axhline(1, color="#222222", linewidth=0.8)
    axes.axhline(1 + COST, color="#888888", linewidth=0.8, linestyle="--")
    axes.text(alone, 1 + COST, f"+{COST:.0%}", va="bottom", ha="right", fontsize=8, color="#555555")
    axes.set_xscale("log")
    ticks(axes, [*speeds, alone], [*(speed_name(speed) for speed in speeds), "left\nalone"])
    axes.set(xlabel="link", ylabel="step over step, measured", title="the step, over that of the link left alone")
    axes.legend(loc="upper right")
    _transfers(right, results, groups)
    return figure


def _line(axes: "Axes", some: list[Slowed], alone: float, label: str) -> None:
    """One model's points with intervals; none where rounds are few."""
    xs = [min(one.speed, alone) for one in some]
    middles = [one.ratio[0] for one in some]
    low = [0.0 if isnan(one.ratio[1]) else one.ratio[0] - one.ratio[1] for one in some]
    high = [0.0 if isnan(one.ratio[2]) else one.ratio[2] - one.ratio[0] for one in some]
    colour = _LINES.get(some[0].row["model"])
    axes.errorbar(xs, middles, [low, high], marker=MARKERS["measured"], color=colour, label=label)


def _transfers(axes: "Axes", results: "Results", groups: list[list[Slowed]]) -> None:
    """Transfer's share of the same steps."""
    names = sorted({one.speed for some in groups for one in some})
    width = 0.8 / len(groups)
    for index, some in enumerate(groups):
        places = [names.index(one.speed) + (index - (len(groups) - 1) / 2) * width for one in some]
        shares = [100 * parts(results, one.row).get("transfer", 0.0) for one in some]
        colour = _LINES.get(some[0].row["model"])
        drawn = axes.bar(places, shares, width * 0.92, color=colour)
        axes.bar_label(drawn, [f"{share:.0f}" for share in shares], fontsize=8, padding=1)
    ticks(axes, list(range(len(names))), ["left\nalone" if name == inf else speed_name(name) for name in names])
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="link", ylabel="share of K x step (%), measured", title="transfer's share of that step")
