"""One device, naive model parallelism and GPipe beside each other for each model and M."""

from collections.abc import Iterator, Mapping
from typing import Any

from matplotlib.figure import Figure

from experiments.two_gpu_demo.runs import ABOUT, NAME, STRATEGIES
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.statistics import interval_of_sets
from repro.report import gantt
from repro.report.curves import ideal_over_k1
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import (
    RATIO,
    Form,
    error_bars,
    framed,
    or_status,
    with_interval,
    with_ratio,
)
from repro.report.style import THEORY, dots, grid, legend_below, model_name, over_m, series_colour
from repro.report.table import EMPTY, Cell, Table

NAMES = dict(zip(STRATEGIES, ("one device", "naive", "GPipe"), strict=True))
OF_K = ("naive", "GPipe")  # the strategies that use K devices
# What the strategies are compared at.
POINT = ["where", "remat", "model", "K", "M"]
RATE, SPEEDUP, IDLE, PEAK = (
    "examples/s", "speedup over one device", "idle/total", "peak of the fullest (MiB)"
)  # fmt: skip
SHOWN = Shown(
    NAME, f"model | K | M | {SPEEDUP} naive | {SPEEDUP} GPipe | {IDLE} naive | {IDLE} GPipe"
)
# Naive is wide and hollow, so that it shows below GPipe where both are equal.
_LOOKS: dict[str, dict[str, Any]] = {
    "single": {"linestyle": "-.", "markerfacecolor": "white"},
    "naive": {"linestyle": "--", "markerfacecolor": "white", "markersize": 9, "linewidth": 2.6},
    "gpipe": {"linestyle": "-", "markersize": 5},
}


def answer(tables: Mapping[str, Table]) -> str:
    """The greatest speedups at the same M, and the fastest step of GPipe over that of one device.

    More micro-batches slow one device down, so a speedup at the same M is not the gain over the
    fastest way to use one device.
    """
    table = tables[NAME]
    naive, gpipe = (table.numbers(f"{SPEEDUP} {name}")[-1] for name in OF_K)
    text = (
        f"At the same M GPipe has at most {gpipe} times the throughput of one device, and naive "
        f"model parallelism {naive} times."
    )
    if "where" in table.data:  # a machine would be held against another
        return text
    best = table.data.groupby("model", sort=False)[[f"{RATE} one device", f"{RATE} GPipe"]].max()
    gains = (best.iloc[:, 1] / best.iloc[:, 0]).dropna()
    texts = [f"{gain:.2f} times ({model_name(str(model))})" for model, gain in gains.items()]
    return f"{text} Each at its own fastest M, GPipe has {' and '.join(texts)}." if texts else text


def tables(results: Results) -> list[Table]:
    frame = runs_frame(results, NAME)
    frame = with_ratio(results, frame, SPEEDUP, K=1, schedule="gpipe")
    frame[PEAK] = [peaks(run) for run in frame["run"]]
    frame = frame.rename(columns={"throughput": RATE, "idle_over_total": IDLE})
    for value in (RATE, SPEEDUP, IDLE, PEAK):
        frame[value] = or_status(frame, value)
    table = frame.loc[frame["K"] > 1, POINT].drop_duplicates()
    for value in (RATE, SPEEDUP, IDLE, PEAK):
        for strategy, name in NAMES.items():
            if name not in OF_K and value in (SPEEDUP, IDLE):
                continue
            # One device stands beside every K.
            at = [part for part in POINT if part != "K" or strategy != "single"]
            runs = select(frame, method=strategy).drop_duplicates(at).set_index(at)
            values = runs.filter([f"{value}{end}" for end in ("", ": low", ": high")])
            names = values.columns.str.replace(value, f"{value} {name}", regex=False)
            table = table.join(values.set_axis(names, axis=1), on=at)
    if table["remat"].nunique() < 2:
        table = table.drop(columns="remat")
    table = table.rename(columns={"remat": "re-materialization"})
    forms: dict[str, Form] = {f"{RATE} {name}": ".1f" for name in NAMES.values()}
    forms |= {f"{SPEEDUP} {name}": RATIO for name in OF_K}
    headings = {f"{PEAK} {name}": f"peak of each device (MiB) {name}" for name in NAMES.values()}
    return [framed(results, NAME, table, ABOUT, forms=forms, headings=headings)]


def peaks(run: Run) -> Cell:
    each = [f"{1024 * peak:.0f}" for peak in run.peak_gib_per_stage]
    return Cell(1024 * run.peak_gib_max, ", ".join(each) or EMPTY)


def figures(results: Results) -> Iterator[Picture]:
    """Of the place and the re-materialization with the most runs."""
    frame = runs_frame(results, NAME, done=True)
    where, remat = frame[["where", "remat"]].value_counts(sort=True).index[0]
    frame = select(frame, where=where, remat=remat)
    yield "curves", against_m(frame), {}
    yield "timeline", one_clock(results, frame), {}


def against_m(frame: Frame) -> Figure:
    throughputs = [
        interval_of_sets([round_.throughputs for round_ in run.rounds]) for run in frame["run"]
    ]
    frame = with_interval(frame, RATE, throughputs)
    frame["peak"] = 1024 * frame["peak_gib_max"]
    frame["order"] = frame["method"].map(STRATEGIES.index)
    models = frame["model"].unique()
    figure, panels = grid(len(models), 2, 2.6)
    for (left, right), model in zip(panels, models, strict=True):
        of_model = select(frame, model=model).sort_values("M")
        alone = select(of_model, method="single")
        for (K, _), runs in of_model.groupby(["K", "order"]):
            (strategy,) = runs["method"].unique()
            name = NAMES[strategy] + (f", K={K}" if K > 1 else "")
            look = dots("measured", color=series_colour(K), label=name, **_LOOKS[strategy])
            left.errorbar(runs["M"], runs[RATE], error_bars(runs, RATE), **look)
            if runs["peak"].notna().any():
                right.plot(runs["M"], runs["peak"], **look)
            if strategy == "gpipe":
                # The throughput of one device, times the speedup of equal stages.
                speedups = [ideal_over_k1(K, run.M, "gpipe", run.remat) for run in alone["run"]]
                ideal = alone["throughput"] * speedups
                label = f"{name}, ideal"
                left.plot(alone["M"], ideal, ":", color=THEORY, linewidth=1.2, label=label)
        N = of_model["N"].iloc[0]
        left.set(title=f"{model_name(model)}, N={N}", ylabel="examples/s, measured")
        right.set(title="the fullest device", ylabel="peak (MiB), measured")
        for axes in (left, right):
            axes.set(ylim=(0, None))
            over_m(axes, of_model["M"])
    legend_below(figure, panels[0][0])
    return figure


def one_clock(results: Results, frame: Frame) -> Figure | None:
    """The naive step above GPipe's at the M nearest to 4 that has both; None where none has."""
    pairs = select(frame, method=["naive", "gpipe"]).groupby(["model", "K", "M"], sort=False)
    for (model, K, M), runs in sorted(pairs, key=lambda pair: (abs(pair[0][2] - 4), pair[0][1])):
        steps = {run.schedule: results.timeline(run) for run in runs["run"]}
        naive, pipelined = steps.get("naive"), steps.get("gpipe")
        if naive is not None and pipelined is not None:
            headline = f"{model_name(model)}, K={K}, M={M}"
            return gantt.draw(headline, [("naive", naive), ("GPipe", pipelined)], "measured")
    return None
