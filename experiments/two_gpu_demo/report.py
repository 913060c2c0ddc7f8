"""One device, naive model parallelism and GPipe beside each other: throughput over M."""

from collections.abc import Iterator
from typing import Any

from matplotlib.figure import Figure

from repro.experiments.two_gpu_demo import runs as plan
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.report import style
from repro.report.curves import OVER_ONE, ideal_of
from repro.report.figures import Picture
from repro.report.framed import error_bars, with_interval
from repro.report.table import Table
from repro.report.tables import points

ABOUT, NAME = plan.ABOUT, plan.NAME
RATE = "throughput"
# Method -> how its line looks. Naive is wide and hollow, so that it shows below GPipe.
LOOKS: dict[str, dict[str, Any]] = {
    "single": {"label": "one device", "linestyle": "-.", "markerfacecolor": "white"},
    "naive": {"label": "naive", "linestyle": "--", "markerfacecolor": "white", "linewidth": 2.6},
    "gpipe": {"label": "GPipe", "linestyle": "-", "markersize": 5},
}


def tables(results: Results) -> list[Table]:
    return [points(results, NAME, OVER_ONE)]


def figures(results: Results) -> Iterator[Picture]:
    """Of the place, the recomputation and the K with the most runs."""
    frame = runs_frame(results, NAME, done=True)
    several = frame[frame["K"] > 1]
    if len(several):
        where, recompute, K = several[["where", "recompute", "K"]].value_counts().index[0]
        frame = select(frame, where=where, recompute=recompute, K=[1, K])
        yield "throughput", over_micro_batches(frame), {"K": K}


def over_micro_batches(frame: Frame) -> Figure:
    """A panel for each model, a line for each method."""
    rates = [[round_.throughputs for round_ in run.rounds] for run in frame["run"]]
    frame = with_interval(frame, RATE, map(interval_of_sets, rates)).sort_values("M")
    models = [*frame.groupby("model", sort=False)]
    figure, panels = style.in_pairs(len(models), 2.9)
    for axes, (model, of_model) in zip(panels, models, strict=True):
        for (K, method), runs in of_model.groupby(["K", "method"]):
            look = style.dots("measured", color=style.series_colour(K), **LOOKS[method])
            axes.errorbar(runs["M"], runs[RATE], error_bars(runs, RATE), **look)
        # The throughput of one device at this M, times the speed-up of equal stages.
        one, piped = (select(of_model, method=name).set_index("M") for name in ("single", "gpipe"))
        both = one.index.intersection(piped.index)
        slower, faster = ([ideal_of(run)[0] for run in of.loc[both, "run"]] for of in (one, piped))
        ideal = one.loc[both, RATE] * faster / slower
        axes.plot(both, ideal, ":", color=style.THEORY, label="GPipe, ideal")
        title = f"{style.model_name(model)}, N={of_model['N'].iloc[0]}"
        unit = of_model["run"].iloc[0].unit
        axes.set(title=title, ylabel=f"{unit}, measured", ylim=(0, None))
        style.over_m(axes, of_model["M"])
    style.legend_below(figure, panels[0])
    return figure
