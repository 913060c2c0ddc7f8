"""The step against the speed of the link."""

from math import inf

import pandas as pd
from matplotlib.figure import Figure

from repro.harness.frame import select
from repro.report.compare import speed_name
from repro.report.style import FIDELITIES, MARKERS, SOFT, grid, model_name, ticks


def slow_links(frame: pd.DataFrame) -> Figure | None:
    """A column for each model: the step over step, and transfer's share, by the link's speed."""
    frame = frame.dropna(subset="ratio")
    frame = frame.groupby(["model", "where"]).filter(lambda runs: len(runs) > 1)
    if frame.empty:
        return None
    models = [*frame["model"].unique()]
    figure, panels = grid(2, len(models), 2.1)
    speeds = sorted(frame["speed"].unique())
    names = ["not\nthrottled" if speed == inf else speed_name(speed) for speed in speeds]
    for above, below, model in zip(*panels, models, strict=True):
        of_model = select(frame, model=model)
        places = of_model.groupby("where", sort=False)
        for index, (where, runs) in enumerate(places):
            shift = 0.3 * (index - (len(places) - 1) / 2)
            at = [speeds.index(speed) + shift for speed in runs["speed"]]
            look = {
                "marker": MARKERS["measured"],
                "color": FIDELITIES["measured"],
                "markerfacecolor": FIDELITIES["measured"] if index == 0 else "white",
                "linestyle": "",
                "label": where,
            }
            ratios = runs["ratio"]
            low, high = runs["low"].fillna(ratios), runs["high"].fillna(ratios)  # few rounds
            above.errorbar(at, ratios, [ratios - low, high - ratios], **look)
            below.plot(at, 100 * runs["transfer"].fillna(0.0), **look)
        above.axhline(1, color=SOFT, linewidth=0.9)
        above.set(title=f"{model_name(model)}, K={of_model['K'].max()}", ylim=(0, None))
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
