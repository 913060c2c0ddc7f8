"""Table 3 as bars, and the step against the speed of the link."""

from collections.abc import Iterator
from itertools import groupby
from math import inf, isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from experiments.costs.error import error_bar
from experiments.table3.runs import NAME, M
from experiments.table3.series import (
    KS,
    Series,
    all_series,
    ideal,
    link_speed,
    over_free_link,
    quoted,
    runs_by_line,
    throttled,
    title_of,
)
from repro.harness.results import Results, Run
from repro.report.compare import beside_paper, speed_name, where
from repro.report.ratio import NO_INTERVAL, over
from repro.report.rounds import fits, parts
from repro.report.style import (
    FIDELITIES,
    MARKERS,
    THEORY,
    above_bar,
    grid,
    in_pairs,
    model_colour,
    model_name,
    ticks,
)


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    """Name, figure and caption of each."""
    yield (
        "bars",
        bars(results),
        f"Throughput over K=2 at M={M}; the ideal has equal stages and free messages. Bars of "
        "simulated cells are the cost model's median error, and hatched cells are counted not to "
        "fit the device.",
    )
    yield (
        "throttled",
        slow_links(results),
        "Measured with scaled-down models: the step over that of the same round whose link is not "
        f"throttled, and transfer's share of it; {NO_INTERVAL}.",
    )


def bars(results: Results) -> Figure | None:
    """One panel a model: for each K quoted, every fidelity that there is, ideal."""
    by_line = runs_by_line(results)
    done = {line[0] for (_, *line), run in by_line.runs.items() if run.done and run.K in KS}
    every = [series for series in all_series(by_line) if series in done]
    every = [series for series in every if not series.scaled_down] or every
    if not every:
        return None
    figure, panels = in_pairs(len(every), 3.4)
    for axes, series in zip(panels, every, strict=True):
        _panel(axes, results, series)
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles)
    )
    return figure


def _panel(axes: Axes, results: Results, series: Series) -> None:
    by_line = runs_by_line(results)
    heights: dict[str, dict[int, float]] = {}
    if beside_paper(results, NAME):
        heights["quoted"] = {K: quoted(series.model, K) for K in KS}
    # What is emulated shows our runtime, and not the paper's devices.
    for fidelity in by_line.fidelities:
        if fidelity == "emulated":
            continue
        runs = [by_line.run(fidelity, series, K) for K in KS]
        done = [run for run in runs if run is not None and run.done]
        if done:
            heights[fidelity] = {run.K: over(results, run, K=2).value for run in done}
    heights["ideal"] = {K: ideal(K) for K in KS}
    width = 0.84 / len(heights)
    for index, (name, ratios) in enumerate(heights.items()):
        known = {K: ratio for K, ratio in ratios.items() if not isnan(ratio)}
        offset = (index - (len(heights) - 1) / 2) * width
        places = [KS.index(K) + offset for K in known]
        # The ideal is nobody's run, so its bars are not filled.
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": THEORY, "linewidth": 0.9}
        if name != "ideal":
            look = {"color": FIDELITIES[name]}
        drawn = axes.bar(places, list(known.values()), width * 0.94, label=name, **look)
        if name == "simulated":
            _mark_uncertainty(axes, drawn, results, series, known)
        if name != "simulated":
            texts = [f"{ratio:.2f}" for ratio in known.values()]
            axes.bar_label(drawn, texts, fontsize=7.5, padding=1.5)
    ticks(axes, list(range(len(KS))), [f"K={K}" for K in KS])
    axes.set(title=title_of(series, by_line), ylabel="throughput over K=2")
    axes.grid(axis="x", visible=False)


def _mark_uncertainty(
    axes: Axes, drawn: BarContainer, results: Results, series: Series, ratios: dict[int, float]
) -> None:
    """Error bars of the cost model, hatches where a cell does not fit, and the numbers above."""
    by_line, bar = runs_by_line(results), error_bar(results)
    for patch, (K, ratio) in zip(drawn, ratios.items(), strict=True):
        if False in (fits(by_line.run("simulated", series, k)) for k in (K, 2)):
            patch.set_hatch("////")
        x, top = patch.get_x() + patch.get_width() / 2, ratio
        if bar is not None and K != 2:
            low, top = bar.ends(ratio)
            axes.errorbar(
                x, ratio, [[ratio - low], [top - ratio]], fmt="none", ecolor=THEORY, capsize=2
            )
        above_bar(axes, x, top, f"{ratio:.2f}", 7.5)


def slow_links(results: Results) -> Figure | None:
    """Step over step and transfer's share for each speed of the link, a colour a model."""
    runs = [run for run in throttled(results) if not isnan(over_free_link(results, run).value)]
    groups = [list(some) for _, some in groupby(runs, key=lambda run: (run.model, run.place))]
    groups = [some for some in groups if len(some) > 1]
    if not groups:
        return None
    figure, ((left, right),) = grid(1, 2, 3.4)
    speeds = sorted({link_speed(run) for some in groups for run in some})
    width = 0.8 / len(groups)
    for index, some in enumerate(groups):
        offset = (index - (len(groups) - 1) / 2) * width
        places = [speeds.index(link_speed(run)) + offset for run in some]
        colour = model_colour(some[0].model)
        label = f"{model_name(some[0].model)}, K={some[0].K} ({where(results, some[0])})"
        ratios = [over_free_link(results, run) for run in some]
        values = [ratio.value for ratio in ratios]
        # No interval where there are few rounds.
        low = [0.0 if isnan(ratio.low) else ratio.value - ratio.low for ratio in ratios]
        high = [0.0 if isnan(ratio.high) else ratio.high - ratio.value for ratio in ratios]
        left.errorbar(
            places,
            values,
            [low, high],
            marker=MARKERS["measured"],
            linestyle="",
            color=colour,
            label=label,
        )
        shares = [100 * parts(run).get("transfer", 0.0) for run in some]
        drawn = right.bar(places, shares, width * 0.92, color=colour)
        right.bar_label(drawn, [f"{share:.0f}" for share in shares], fontsize=8, padding=1)
    names = ["not\nthrottled" if speed == inf else speed_name(speed) for speed in speeds]
    for axes in (left, right):
        ticks(axes, list(range(len(speeds))), names)
        axes.set_xlabel("link")
        axes.grid(axis="x", visible=False)
    left.axhline(1, color=THEORY, linewidth=0.8)
    left.set(ylabel="step over step, measured", title="the step, over that of a link not throttled")
    left.legend(loc="upper right", frameon=True, framealpha=1, edgecolor="none")
    right.set(ylabel="share of K x step (%), measured", title="transfer's share of that step")
    return figure
