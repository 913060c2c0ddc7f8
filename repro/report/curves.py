"""One figure for any sweep: speed-up, idle share and peak memory over M, a line for each K.

A line without markers is the ideal of the same schedule, which is made here. A marker tells the
fidelity, as the title does, and a colour the number of devices.
"""

from collections.abc import Sequence
from math import nan
from typing import Any

import numpy as np
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
# What a run is divided by, as the fields in which that run differs.
_BASES: dict[str, dict[str, Any]] = {OVER_PLAIN: PLAIN, OVER_ONE: {"K": 1, "schedule": "gpipe"}}
# Beside K and M, what makes another row of panels.
_SETTINGS = ("N", "remat", "where")


def ideal_of(run: Run) -> tuple[float, float]:
    """Speed-up over plain training and idle share with F:R:B = 1:1:2 and free messages.

    NaN if the schedule is not ours, or if its ranks hold several stages. For "gpipe" with
    re-materialization always the step is `paper.theory`'s early form; with never, the plain one.
    """
    ours = run.library == "repro" and run.spec.devices == run.K and run.schedule in SCHEDULES
    if not ours or SCHEDULES[run.schedule].interleaved:
        return nan, nan
    schedule = make_schedule(run.schedule, run.K, run.M, run.remat)
    timeline = replay(schedule, lambda action: theory.UNIT_COSTS[action.kind])
    plain = run.K * run.M * (theory.UNIT_COSTS["F"] + theory.UNIT_COSTS["B"])
    return plain / timeline.step_time, timeline.idle_over_total


def timed_runs(results: Results, experiment: str, over: str = OVER_PLAIN) -> Frame:
    """The training runs of an experiment, with throughput over plain training or one device."""
    frame = runs_frame(results, experiment, task="train")
    # Where nothing fits, N is 0 and nothing was timed.
    frame = frame[frame["N"] > 0]
    estimates = ratios(results, frame, **_BASES[over]).to_numpy().tolist()
    return with_interval(frame, over, estimates)


def sweep(frame: Frame, most: int) -> Figure | None:
    """A row of panels for each of the settings with the most runs.

    Args:
        frame: of finished runs, with `OVER_PLAIN` and its interval.
        most: rows.
    """
    frame = frame.assign(setting=told_apart(frame, _SETTINGS))
    # One stage belongs to each pipeline, and is no row of its own.
    frame["way"] = frame["method"].mask(frame["method"] == "single", frame["schedule"])
    groups = [of for _, of in frame.groupby(["model", "way", "fidelity", "setting"], sort=False)]
    rows = [of for of in groups if of["devices"].max() > 1]
    rows = sorted(rows, key=len, reverse=True)[:most]
    if not rows:
        return None
    figure, panels = grid(len(rows), 3, 2.6)
    for line, of in zip(panels, rows, strict=True):
        _over_m(line, of.sort_values("M"))
    for column in [*zip(*panels, strict=True)][:2]:  # memory has a scale of its own in each row
        top = max(axes.get_ylim()[1] for axes in column)
        for axes in column:
            axes.set_ylim(0, top)
    return figure


def _over_m(panels: Sequence[Axes], frame: Frame) -> None:
    """Speed-up, idle share and memory of one setting, a line for each K."""
    speedup, idle, peak = panels
    for (K, devices), runs in frame.groupby(["K", "devices"]):
        look: dict[str, Any] = {"color": series_colour(devices)}
        speedups, shares = zip(*map(ideal_of, runs["run"]), strict=True)
        speedup.plot(runs["M"], speedups, ":", **look)
        idle.plot(runs["M"], [100 * share for share in shares], ":", **look)
        look["marker"] = MARKERS[runs["fidelity"].iloc[0]]
        look["label"] = f"K={K}" if devices == K else f"{devices} devices"
        speedup.errorbar(runs["M"], runs[OVER_PLAIN], error_bars(runs, OVER_PLAIN), **look)
        idle.plot(runs["M"], 100 * runs["idle_over_total"], **look)
        peak.plot(runs["M"], 1024 * runs["peak_gib_max"], **look)
    first = frame.iloc[0]
    names = model_name(first["model"]), first["way"], first["fidelity"], first["setting"]
    speedup.set(title=", ".join(filter(None, names)), ylabel="speed-up over plain")
    speedup.legend(loc="best", handlelength=1.2)
    idle.set(ylabel="idle/total (%)")
    peak.set(ylabel="peak (MiB), fullest device")
    for axes in panels:
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
        over_m(axes, frame["M"])
        drawn = [np.isfinite(np.asarray(line.get_ydata(), float)) for line in axes.get_lines()]
        if not np.concatenate(drawn).any():  # as idle time, where a method is not traced
            axes.set_axis_off()
