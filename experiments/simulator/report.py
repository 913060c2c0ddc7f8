"""Is the simulator right? Simulated steps over measured and emulated ones of the same rounds.

A simulated step has its costs from layers that were timed in the same round, alone and on all
processes at once, and its cut from the run that it is held against; nothing is fitted to a step.
"""

from collections.abc import Iterator, Mapping
from math import nan
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.simulator.runs import ABOUT, NAME
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.schema import TrainRound
from repro.harness.statistics import interval_of_sets
from repro.report import style
from repro.report.figures import Picture
from repro.report.framed import error_bars, framed, with_interval
from repro.report.table import Table

GOAL = 7.0  # percent, with layers that were timed here
WAYS = ("mixed", "together", "alone")  # how layers were timed, see `repro.harness.predict.ways_of`
ERRORS = {"known": "error over emulated (%) known"} | {
    way: f"error over measured (%) {way}" for way in WAYS
}
_ASIDE = 0.22  # of a category: the cross stands so far to the right, the rounds so far to the left


def judged(results: Results) -> Frame:
    """A line for each measured and emulated run, with its simulated steps.

    The columns of `ERRORS` have the simulated over the real step, minus 1, in percent, of each
    block of each round; `errors` has those that the goal is for, with layers timed alone too where
    they were.
    """
    frame = runs_frame(results, NAME, task="train")
    known = {
        (run.place, run.group, round_.name): round_.step_s
        for run in select(frame, fidelity="simulated")["run"]
        for round_ in run.rounds
    }
    frame = select(frame, fidelity=["measured", "emulated"])
    ascending = [False, True, True]  # measured first
    frame = frame.sort_values(["fidelity", "model", "M"], ascending=ascending, kind="stable")
    lines = [_errors(run, known) for run in frame["run"]]
    columns = [*ERRORS.values(), "errors", "simulated"]
    return frame.join(pd.DataFrame(lines, frame.index, columns, dtype=object))


def _errors(run: Run, known: Mapping[Any, float]) -> Mapping[str, object]:
    errors: dict[str, list[list[float]]] = {way: [] for way in ERRORS}
    steps: dict[str, list[float]] = {way: [] for way in ERRORS}
    for round_ in run.rounds:
        assert isinstance(round_.record, TrainRound)
        key = run.place, run.group, round_.name
        emulated = run.fidelity == "emulated" and key in known
        simulated = {"known": known[key]} if emulated else round_.record.predicted
        for way, seconds in simulated.items():
            steps[way].append(seconds)
            errors[way].append([100 * (seconds / real - 1) for real in round_.blocks])
    way = next((way for way in ERRORS if steps[way]), "known")
    simulated_ms = 1e3 * median(steps[way]) if steps[way] else nan
    columns = {ERRORS[name]: of_rounds for name, of_rounds in errors.items()}
    return columns | {"errors": errors[way], "simulated": simulated_ms}


def tables(results: Results) -> list[Table]:
    frame = judged(results)
    measured = frame["fidelity"] == "measured"
    table = frame.loc[:, ["where", "model", "K", "M", "N", "rounds", "run"]]
    table["model"] = frame["model"].map(style.model_name).where(measured, "known durations")
    missing = frame["status"].where(~frame["done"], "no calibration")
    rounds = frame["errors"].map(len).astype(object)
    table["rounds"] = rounds.where(rounds > 0, missing)
    table["step (ms) measured"] = 1e3 * frame["step_s"].where(measured)
    table["step (ms) emulated"] = 1e3 * frame["step_s"].where(~measured)
    table["step (ms) simulated"] = frame["simulated"]
    for column in ERRORS.values():
        table = with_interval(table, column, frame[column].map(interval_of_sets))
    forms = dict.fromkeys(ERRORS.values(), "+.1f")
    return [framed(results, NAME, table, ABOUT, forms=forms, keep_where=True)]


def figures(results: Results) -> Iterator[Picture]:
    yield "error", figure(results), {}


def figure(results: Results) -> Figure | None:
    frame = judged(results)
    frame = select(frame[frame["errors"].map(len) > 0], fidelity="measured", done=True)
    if not len(frame):
        return None
    panels = frame.groupby(["model", "where", "K"], sort=False)
    drawn, every = style.in_pairs(len(panels), 3.4)
    for axes, ((model, where, K), runs) in zip(every, panels, strict=True):
        _panel(axes, runs)
        axes.set_title(f"{style.model_name(model)}, K={K} ({where})")
    bounds = [axes.get_ylim() for axes in every]
    for axes in every:
        axes.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    style.legend_below(drawn, every[0])
    return drawn


def _panel(axes: Axes, runs: Frame) -> None:
    label = f"goal: within {GOAL:g} %"
    axes.axhspan(-GOAL, GOAL, color=style.IDLE, linewidth=0, label=label)
    axes.axhline(0, color=style.THEORY, linewidth=0.8)
    places = pd.Series(range(len(runs)), runs.index)
    measured = style.FIDELITIES["measured"]
    in_rounds = runs["errors"].explode().map(median)
    look = {"ms": 4, "mec": "none", "color": measured, "alpha": 0.35, "label": "a round"}
    axes.plot(places[in_rounds.index] - _ASIDE, in_rounds, "o", **look)
    runs = with_interval(runs, "median", runs["errors"].map(interval_of_sets))
    look = style.dots("simulated", elinewidth=1.4, capsize=3, label="median, 95 % interval")
    axes.errorbar(places, runs["median"], error_bars(runs, "median"), **look)
    alone = runs[runs[ERRORS["mixed"]].map(bool)]
    if len(alone):
        together = alone[ERRORS["together"]].map(interval_of_sets).str[0]
        label = "layers timed together only"
        axes.plot(places[alone.index] + _ASIDE, together, "x", color=measured, label=label)
    style.ticks(axes, list(range(len(runs))), list(map(str, runs["M"])))
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="M micro-batches", ylabel="simulated over measured,\nminus 1 (%)")
