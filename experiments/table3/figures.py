"""The step against the speed of the link."""

from collections.abc import Iterator
from itertools import groupby
from math import inf, isnan
from typing import Any

from matplotlib.figure import Figure

from experiments.table3.series import link_speed, over_free_link, throttled
from repro.harness.results import Results, Run
from repro.report.compare import speed_name, where
from repro.report.ratio import NO_INTERVAL
from repro.report.rounds import parts
from repro.report.style import FIDELITIES, MARKERS, SOFT, grid, model_name, ticks


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    yield (
        "throttled",
        slow_links(results),
        "How slow a link may be, measured with scaled-down models. Above is the step over that of "
        f"the same round whose link is not throttled ({NO_INTERVAL}), below transfer's share.",
    )


def slow_links(results: Results) -> Figure | None:
    """A column a model: the step over step, and transfer's share, for each speed of the link."""
    runs = [run for run in throttled(results) if not isnan(over_free_link(results, run).value)]
    groups = [list(group) for _, group in groupby(runs, key=lambda run: (run.model, run.place))]
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return None
    models = list(dict.fromkeys(group[0].model for group in groups))
    figure, panels = grid(2, len(models), 2.1)
    speeds = sorted({link_speed(run) for group in groups for run in group})
    names = ["not\nthrottled" if speed == inf else speed_name(speed) for speed in speeds]
    for above, below, model in zip(*panels, models, strict=True):
        of_model = [group for group in groups if group[0].model == model]
        for index, group in enumerate(of_model):
            shift = 0.3 * (index - (len(of_model) - 1) / 2)
            places = [speeds.index(link_speed(run)) + shift for run in group]
            look: dict[str, Any] = {
                "marker": MARKERS["measured"],
                "color": FIDELITIES["measured"],
                "markerfacecolor": FIDELITIES["measured"] if index == 0 else "white",
                "linestyle": "",
                "label": where(results, group[0]),
            }
            ratios = [over_free_link(results, run) for run in group]
            values = [ratio.value for ratio in ratios]
            # No interval where there are few rounds.
            low = [0.0 if isnan(ratio.low) else ratio.value - ratio.low for ratio in ratios]
            high = [0.0 if isnan(ratio.high) else ratio.high - ratio.value for ratio in ratios]
            above.errorbar(places, values, [low, high], **look)
            shares = [100 * parts(run).get("transfer", 0.0) for run in group]
            below.plot(places, shares, **look)
        above.axhline(1, color=SOFT, linewidth=0.9)
        above.set(title=f"{model_name(model)}, K={of_model[0][0].K}", ylim=(0, None))
        below.set(ylim=(0, None), xlabel="link")
        for axes in (above, below):
            ticks(axes, list(range(len(speeds))), names)
            axes.grid(axis="x", visible=False)
        above.tick_params(axis="x", labelbottom=False)
    for row in panels:
        highest = max(axes.get_ylim()[1] for axes in row)
        for axes in row:
            axes.set_ylim(0, highest)
    panels[0][0].set_ylabel("step over that of\na link not throttled")
    panels[1][0].set_ylabel("transfer (% of K x step)")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(handles))
    return figure
