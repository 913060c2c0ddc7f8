"""Is the simulator right? Simulated steps over measured and emulated ones of the same rounds.

A simulated step has its costs from layers that were timed in the same round, alone and on all
processes at once, and its cut from the run that it is held against; nothing is fitted to a step.
"""

from collections.abc import Iterator, Mapping
from math import isnan
from statistics import median
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.simulator.runs import ABOUT, NAME
from repro.harness.frame import runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.schema import TrainRound
from repro.harness.statistics import interval
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import framed, with_interval
from repro.report.style import FIDELITIES, IDLE, MARKERS, THEORY, in_pairs, model_name, ticks
from repro.report.table import Table

GOAL = 7.0  # percent, with layers that were timed here
WAYS = ("mixed", "together", "alone")  # how layers were timed, see `repro.harness.predict.ways_of`
ERRORS = {"known": "error over emulated (%) known"} | {
    way: f"error over measured (%) {way}" for way in WAYS
}
_ASIDE = 0.22  # of a category: the cross stands so far to the right, the rounds so far to the left
SHOWN = Shown(
    NAME,
    (
        "model",
        "M",
        "step (ms) measured",
        "step (ms) emulated",
        "step (ms) simulated",
        ERRORS["known"],
        ERRORS["mixed"],
    ),
)


def judged(results: Results) -> pd.DataFrame:
    """A line for each measured and emulated run, with its simulated steps.

    The columns of `ERRORS` have the simulated over the real step, minus 1, in percent, of each
    round; `way` is the one that the goal is for, "mixed" where layers were timed alone too.
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
    return frame.assign(**pd.DataFrame(lines, frame.index, [*ERRORS.values(), "way", "simulated"]))


def _errors(run: Run, known: Mapping[Any, float]) -> dict[str, object]:
    steps: dict[str, list[tuple[float, float]]] = {way: [] for way in ERRORS}
    for round_ in run.rounds:
        assert isinstance(round_.record, TrainRound)
        simulated = dict(round_.record.predicted)
        key = run.place, run.group, round_.name
        if run.fidelity == "emulated" and key in known:
            simulated = {"known": known[key]}
        for way, seconds in simulated.items():
            steps[way].append((seconds, round_.step_s))
    way = next((way for way, pairs in steps.items() if pairs), "")
    simulated_ms = 1e3 * median(seconds for seconds, _ in steps[way]) if way else float("nan")
    errors = {
        ERRORS[name]: [100 * (simulated / real - 1) for simulated, real in pairs]
        for name, pairs in steps.items()
    }
    return {**errors, "way": way, "simulated": simulated_ms}


def tables(results: Results) -> list[Table]:
    frame = judged(results)
    if not len(frame):
        return []
    measured = frame["fidelity"] == "measured"
    table = frame.loc[:, ["where", "model", "K", "M", "N", "rounds"]]
    table["model"] = frame["model"].map(model_name).where(measured, "known durations")
    missing = frame["status"].where(~frame["done"], "no calibration")
    rounds = [len(errors[way]) if way else 0 for way, errors in _by_way(frame)]
    table["rounds"] = pd.Series(rounds, frame.index, dtype=object).where(
        frame["way"] != "", missing
    )
    table["step (ms) measured"] = 1e3 * frame["step_s"].where(measured)
    table["step (ms) emulated"] = 1e3 * frame["step_s"].where(~measured)
    table["step (ms) simulated"] = frame["simulated"]
    for column in ERRORS.values():
        table = with_interval(table, column, frame[column].map(interval))
    table["run"] = frame["run"]
    forms = dict.fromkeys(ERRORS.values(), "+.1f")
    return [framed(results, NAME, table, ABOUT, forms=forms, keep_where=True)]


def _by_way(frame: pd.DataFrame) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Of each line its way, and way -> errors of the rounds."""
    for line in frame.to_dict("records"):
        yield line["way"], {way: line[column] for way, column in ERRORS.items()}


def answer(tables: Mapping[str, Table]) -> str:
    errors = tables[NAME].numbers(ERRORS["mixed"])
    missed = sum(abs(float(error)) > GOAL for error in errors)
    return (
        f"The median error of a simulated step lies between {errors[0]} % and {errors[-1]} % of "
        f"the measured one; the goal of {GOAL:g} % is missed at {missed} of {len(errors)} points."
    )


def figures(results: Results, rows: list[Run]) -> Iterator[Picture]:
    yield "error", figure(results, rows), ABOUT.words["error"].note


def figure(results: Results, rows: list[Run]) -> Figure | None:
    """One panel a model and place, a category an M; measured runs alone."""
    frame = judged(results)
    frame = select(frame, way=list(WAYS)) if len(frame) else frame
    frame = frame.loc[[run in rows for run in frame["run"]]] if len(frame) else frame
    if not len(frame):
        return None
    panels = frame.groupby(["model", "where", "K"], sort=False)
    drawn, every = in_pairs(len(panels), 3.4)
    for axes, (_, runs) in zip(every, panels, strict=True):
        _panel(axes, runs)
        first = runs.iloc[0]
        axes.set_title(f"{model_name(first['model'])}, K={first['K']} ({first['where']})")
    bounds = [axes.get_ylim() for axes in every]
    for axes in every:
        axes.set_ylim(min(low for low, _ in bounds), max(high for _, high in bounds))
    handles, labels = every[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return drawn


def _panel(axes: Axes, runs: pd.DataFrame) -> None:
    label = f"goal: within {GOAL:g} %"
    axes.axhspan(-GOAL, GOAL, color=IDLE, linewidth=0, label=label)
    axes.axhline(0, color=THEORY, linewidth=0.8)
    lines = list(_by_way(runs))
    of_rounds = [errors[way] for way, errors in lines]
    dots = [(at - _ASIDE, error) for at, errors in enumerate(of_rounds) for error in errors]
    measured = FIDELITIES["measured"]
    axes.plot(
        *zip(*dots, strict=True), "o", ms=4, mec="none", color=measured, alpha=0.35, label="a round"
    )
    spreads = [interval(errors) for errors in of_rounds]
    # No interval where there are few rounds.
    down = [0.0 if isnan(low) else middle - low for middle, low, _ in spreads]
    up = [0.0 if isnan(high) else high - middle for middle, _, high in spreads]
    axes.errorbar(
        range(len(runs)),
        [middle for middle, _, _ in spreads],
        [down, up],
        fmt=MARKERS["simulated"],
        color=FIDELITIES["simulated"],
        elinewidth=1.4,
        capsize=3,
        label="median, 95 % interval",
    )
    crosses = [
        (at + _ASIDE, median(errors["together"]))
        for at, (way, errors) in enumerate(lines)
        if way == "mixed"
    ]
    if crosses:
        axes.plot(
            *zip(*crosses, strict=True), "x", color=measured, label="layers timed together only"
        )
    ticks(axes, list(range(len(runs))), list(map(str, runs["M"])))
    axes.set_xlim(-0.6, len(runs) - 0.4)
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="M micro-batches", ylabel="simulated over measured,\nminus 1 (%)")
