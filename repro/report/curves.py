"""One figure for any sweep: speed-up, step, idle share and memory over M, a line for each K.

A line without markers is the ideal of the same schedule, which is made here. A marker tells the
fidelity, as the title does, and a colour the number of devices.
"""

from collections.abc import Mapping
from math import nan
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.harness.frame import Frame, ratios, runs_frame
from repro.harness.results import Results, Run
from repro.harness.spec import PLAIN
from repro.paper import theory
from repro.report.compare import told_apart
from repro.report.framed import error_bars, with_interval
from repro.report.style import MARKERS, grid, model_name, over_m, series_colour

OVER_PLAIN, OVER_ONE = "over plain training", "over one device"
STEP, IDLE, PEAK = "step (ms)", "idle/total (%)", "peak memory (MiB)"
MOST = 4  # rows of the figure
# What a run is divided by, as the fields in which that run differs.
_BASES: dict[str, dict[str, Any]] = {OVER_PLAIN: PLAIN, OVER_ONE: {"K": 1, "schedule": "gpipe"}}
# Beside K and M, what makes another row of panels.
_SETTINGS = ("N", "recompute", "where")


def ideal_of(run: Run) -> tuple[float, float]:
    """Speed-up over plain training and idle share with F:R:B = 1:1:2 and free messages.

    NaN if the schedule is not ours, or if its ranks hold several stages. For "gpipe" with
    re-materialization always the step is `paper.theory`'s early form; with never, the plain one.
    """
    ours = run.library == "repro" and run.spec.devices == run.K and run.schedule in SCHEDULES
    if not ours or SCHEDULES[run.schedule].interleaved:
        return nan, nan
    schedule = make_schedule(run.schedule, run.K, run.M, run.recompute)
    timeline = replay(schedule, lambda kind, _stage: theory.UNIT_COSTS[kind])
    plain = run.K * run.M * (theory.UNIT_COSTS["F"] + theory.UNIT_COSTS["B"])
    return plain / timeline.step_time, timeline.idle_over_total


def timed_runs(results: Results, experiment: str, over: str = OVER_PLAIN) -> Frame:
    """The training runs of an experiment, with throughput over plain training or one device."""
    frame = runs_frame(results, experiment, task="train")
    # Where nothing fits, N is 0 and nothing was timed.
    frame = frame[frame["N"] > 0]
    estimates = ratios(results, frame, **_BASES[over]).to_numpy().tolist()
    return with_interval(frame, over, estimates)


def sweep(frame: Frame) -> Figure | None:
    """A row of panels for each of the `MOST` settings with the most runs.

    The frame is of finished runs, with `OVER_PLAIN` and its interval.
    """
    frame = frame.assign(setting=told_apart(frame, _SETTINGS))
    frame[STEP], frame[IDLE] = 1e3 * frame["step_s"], 100 * frame["idle_over_total"]
    frame[PEAK] = 1024 * frame["peak_gib_max"]
    # One stage belongs to each pipeline, and is no row of its own.
    frame["way"] = frame["method"].mask(frame["method"] == "single", frame["schedule"])
    groups = [of for _, of in frame.groupby(["model", "way", "fidelity", "setting"], sort=False)]
    rows = [of for of in groups if of["devices"].max() > 1]
    rows = sorted(rows, key=len, reverse=True)[:MOST]
    if not rows:
        return None
    # Idle time is not known where a method is not traced.
    shown = [*pd.concat(rows)[[OVER_PLAIN, STEP, IDLE, PEAK]].dropna(axis=1, how="all")]
    figure, panels = grid(len(rows), len(shown), 2.6, legend=False)
    for line, of in zip(panels, rows, strict=True):
        _over_m(dict(zip(shown, line, strict=True)), of.sort_values("M"))
    for name, column in zip(shown, zip(*panels, strict=True), strict=True):
        top = max(axes.get_ylim()[1] for axes in column)
        for axes in column:
            axes.set_ylabel(f"speed-up {name}" if name == OVER_PLAIN else name)
            if name in (OVER_PLAIN, IDLE):  # each row has a step and a memory of its own
                axes.set_ylim(0, top)
    return figure


def _over_m(panels: Mapping[str, Axes], frame: Frame) -> None:
    """One setting, a line for each K."""
    for (K, devices), runs in frame.groupby(["K", "devices"]):
        look: dict[str, Any] = {"color": series_colour(devices)}
        look["marker"] = MARKERS[runs["fidelity"].iloc[0]]
        look["label"] = f"K={K}" if devices == K else f"{devices} devices"
        speedups, shares = zip(*map(ideal_of, runs["run"]), strict=True)
        ideals = {OVER_PLAIN: speedups, IDLE: [100 * share for share in shares]}
        for name, axes in panels.items():
            if name in ideals:
                axes.plot(runs["M"], ideals[name], ":", color=look["color"])
            bars = error_bars(runs, name) if name == OVER_PLAIN else None
            axes.errorbar(runs["M"], runs[name], bars, **look)
    first, (leftmost, *_) = frame.iloc[0], panels.values()
    names = model_name(first["model"]), first["way"], first["fidelity"], first["setting"]
    leftmost.set_title(", ".join(filter(None, names)))
    leftmost.legend(loc="best", handlelength=1.2)
    for name, axes in panels.items():
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        over_m(axes, frame["M"])
        if frame[name].isna().all():
            axes.set_axis_off()
