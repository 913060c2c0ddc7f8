"""Table 3 as bars, and the step against the speed of the link."""

import textwrap
from collections.abc import Iterator
from math import inf, isnan
from typing import TYPE_CHECKING, Any

from experiments.table3 import throughput
from experiments.table3.links import COST, THROTTLED, Slowed, sentences, slowed
from experiments.table3.throughput import KS, NAME, M, Series, ideal, over_k2, quoted, series
from repro.harness.results import Results, Run
from repro.report.compare import beside_paper, fidelities, optimizers, speed_name, where
from repro.report.ratio import NO_INTERVAL
from repro.report.rounds import parts
from repro.report.style import (
    FIDELITIES,
    MARKERS,
    THEORY,
    grid,
    in_pairs,
    model_colour,
    model_name,
    ticks,
)
from repro.report.table import Table
from repro.report.texts import IDEAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FOLDED = ("table3_points*",)
_ORDER = (*FIDELITIES, "ideal")
_LINE = 46  # characters that fit the title of half a figure
# times the fastest link: where, beyond a break of the axis, the link stands that is not throttled
_GAP = 4.0


def tables(results: Results) -> list[Table]:
    """Throughput, the links of the simulated runs, and a link that is throttled."""
    return throughput.tables(results)


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """Name, figure and caption of each."""
    updates = [optimizers(results, some, always=True) for some in _split(rows)]
    theirs = "quoted, " if beside_paper(results, NAME) else ""
    words = f"Throughput over K=2 at M={M}: {theirs}ours and the ideal. {IDEAL}"
    yield "bars", bars(results), " ".join(filter(None, (words, updates[0])))
    words = (
        "Measured with scaled-down models: the step over that of the same round whose link is not "
        f"throttled, which stands apart at the right and is 1; {NO_INTERVAL}."
    )
    yield (
        "throttled",
        throttled(results),
        " ".join(filter(None, [words, updates[1], *sentences(results)])),
    )


def _split(rows: list[Run]) -> tuple[list[Run], list[Run]]:
    """Those of the table, and those whose link is throttled."""
    slow = [row.group.endswith(THROTTLED) for row in rows]
    return [r for r, one in zip(rows, slow, strict=True) if not one], [
        r for r, one in zip(rows, slow, strict=True) if one
    ]


def bars(results: Results) -> "Figure | None":
    """One panel a model: for each K quoted, every fidelity that there is, ideal."""
    found = [one for one in series(results) if any(row.status == "done" for row in one.rows)]
    full = [one for one in found if one.papers_size]
    found = full or found
    if not found:
        return None
    figure, panels = in_pairs(len(found), 3.4)
    handles = {}
    for panel, one in zip(panels, found, strict=True):
        _panel(panel, results, one)
        handles |= {
            label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
        }
    ordered = [name for name in _ORDER if name in handles]
    figure.legend(
        [handles[name] for name in ordered], ordered, loc="outside lower center", ncols=len(ordered)
    )
    return figure


def _title(results: Results, one: Series) -> str:
    """The model, and the size and device of its modelled runs."""
    specs = [row.spec for row in one.rows if row.status == "done"]
    spec = next((spec for spec in specs if spec.profile), specs[0])
    size = ", ".join(
        [*(f"{name}={value}" for name, value in spec.model_args.items()), f"N={spec.N}"]
    )
    size += f" on {spec.profile}" if spec.profile else ""
    return "\n".join(
        textwrap.fill(words, _LINE, break_on_hyphens=False) for words in (one.title, size)
    )


def _panel(axes: "Axes", results: Results, one: Series) -> None:
    done = [row for row in one.rows if row.status == "done" and row.K in KS]
    quoting = beside_paper(results, NAME)
    heights = {"quoted": {K: quoted(one.model, K) for K in KS}} if quoting else {}
    for fidelity in fidelities(done):
        heights[fidelity] = {
            row.K: over_k2(results, row).value for row in done if row.fidelity == fidelity
        }
    heights["ideal"] = {K: ideal(K) for K in KS}
    width = 0.84 / len(heights)
    for index, name in enumerate(name for name in _ORDER if name in heights):
        at = {n: K for n, K in enumerate(KS) if not isnan(heights[name].get(K, float("nan")))}
        places = [n + (index - (len(heights) - 1) / 2) * width for n in at]
        values = [heights[name][K] for K in at.values()]
        drawn = axes.bar(places, values, width * 0.94, label=name, **_look(name))
        axes.bar_label(drawn, [f"{value:.2f}" for value in values], fontsize=7.5, padding=1.5)
    ticks(axes, list(range(len(KS))), [f"K={K}" for K in KS])
    axes.set(title=_title(results, one), ylabel="throughput over K=2")
    axes.grid(axis="x", visible=False)


def _look(name: str) -> dict[str, Any]:
    """A fidelity's colour; the ideal is nobody's run and not filled."""
    if name == "ideal":
        return {"facecolor": "none", "edgecolor": THEORY, "linewidth": 0.9}
    return {"color": FIDELITIES[name]}


def throttled(results: Results) -> "Figure | None":
    """Step over that of the link left alone against the link's speed, a line a model and place."""
    groups = [[one for one in some if not isnan(one.ratio[0])] for some in slowed(results)]
    groups = [some for some in groups if len(some) > 1]
    if not groups:
        return None
    figure, ((axes, right),) = grid(1, 2, 3.4)
    speeds = sorted({one.speed for some in groups for one in some if one.speed < inf})
    apart = _GAP * speeds[-1]
    for index, some in enumerate(groups):
        # all are 1 there, and would cover one another
        aside = apart * 1.25 ** (index - (len(groups) - 1) / 2)
        _line(axes, some, aside, _name(results, some))
    axes.axhline(1, color=THEORY, linewidth=0.8)
    axes.axhline(1 + COST, color="#888888", linewidth=0.8, linestyle="--")
    axes.text(
        speeds[0], 1 + COST, f"+{COST:.0%}", va="bottom", ha="left", fontsize=8, color="#555555"
    )
    axes.set_xscale("log")
    axes.set_xlim(speeds[0] / 1.6, apart * 1.6)
    ticks(axes, [*speeds, apart], [*(speed_name(speed) for speed in speeds), "not\nthrottled"])
    _broken(axes, (speeds[-1] * apart) ** 0.5)
    axes.set(
        xlabel="link",
        ylabel="step over step, measured",
        title="the step, over that of a link not throttled",
    )
    axes.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    _transfers(right, results, groups)
    return figure


def _name(results: Results, some: list[Slowed]) -> str:
    row = some[0].row
    return f"{model_name(row.model)}, K={row.K} ({where(results, row)})"


def _line(axes: "Axes", some: list[Slowed], apart: float, label: str) -> None:
    """One model's points with intervals, none where rounds are few; the link that is not throttled joins no line."""
    look: dict[str, Any] = {
        "marker": MARKERS["measured"],
        "color": model_colour(some[0].row.model),
    }
    slow = [one for one in some if one.speed < inf]
    low = [0.0 if isnan(one.ratio[1]) else one.ratio[0] - one.ratio[1] for one in slow]
    high = [0.0 if isnan(one.ratio[2]) else one.ratio[2] - one.ratio[0] for one in slow]
    axes.errorbar(
        [one.speed for one in slow],
        [one.ratio[0] for one in slow],
        [low, high],
        label=label,
        **look,
    )
    axes.plot(
        [apart for one in some if one.speed == inf],
        [one.ratio[0] for one in some if one.speed == inf],
        **look,
    )


def _broken(axes: "Axes", at: float) -> None:
    """Two strokes through the x axis: what is right of them has no place on its scale."""
    across = axes.get_xaxis_transform()
    axes.axvline(at, color="#888888", linewidth=0.8, linestyle=":")
    axes.text(at, 0, "//", transform=across, ha="center", va="center", fontsize=11, color="#444444")


def _transfers(axes: "Axes", results: Results, groups: list[list[Slowed]]) -> None:
    """Transfer's share of the same steps."""
    names = sorted({one.speed for some in groups for one in some})
    width = 0.8 / len(groups)
    for index, some in enumerate(groups):
        places = [names.index(one.speed) + (index - (len(groups) - 1) / 2) * width for one in some]
        shares = [100 * parts(results, one.row).get("transfer", 0.0) for one in some]
        drawn = axes.bar(places, shares, width * 0.92, color=model_colour(some[0].row.model))
        axes.bar_label(drawn, [f"{share:.0f}" for share in shares], fontsize=8, padding=1)
    ticks(
        axes,
        list(range(len(names))),
        ["not\nthrottled" if name == inf else speed_name(name) for name in names],
    )
    axes.grid(axis="x", visible=False)
    axes.set(
        xlabel="link",
        ylabel="share of K x step (%), measured",
        title="transfer's share of that step",
    )
