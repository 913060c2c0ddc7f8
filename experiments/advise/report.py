"""Is the advised plan fast? Predicted beside measured steps, and the advised plan over the best."""

from collections.abc import Mapping
from math import nan
from statistics import median
from typing import Any

import pandas as pd

from experiments.advise.runs import ABOUT, NAME
from repro.harness.frame import Frame, ratio_of, runs_frame, select
from repro.harness.results import Results, Round
from repro.harness.schema import TrainRound
from repro.harness.spec import TINY
from repro.harness.statistics import interval_of_sets
from repro.report.declared import Shown
from repro.report.framed import estimated, framed, met_or_missed, with_interval
from repro.report.table import Table

GOAL = 1.05  # the advised step over that of the fastest measured plan
PREDICTED, MEASURED, ERROR = "step (ms) predicted", "step (ms) measured", "error (%) predicted"
SHOWN = Shown(f"{NAME}_verdict")


def tables(results: Results) -> list[Table]:
    frame = plans(results)
    shown = ["where", "method", "K", "D", "M", "recomputed", "rounds", PREDICTED, MEASURED]
    shown += [ERROR, f"{ERROR}: low", f"{ERROR}: high", "rank predicted", "rank measured", "run"]
    forms = {ERROR: "+.1f"}
    every = framed(results, NAME, frame[shown], ABOUT, forms=forms, keep_where=True)
    return [every, verdict(results, frame)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[f"{NAME}_verdict"]
    if table.text("advised") == table.text("fastest measured"):
        return (
            f"The advised plan is the fastest of {table.text('plans')} measured plans (goal: its "
            f"step over that of the fastest one {table.text('goal')})."
        )
    return (
        f"The advised plan's step takes {table.text('advised over fastest')} times as long as that "
        f"of the fastest of {table.text('plans')} measured plans (goal: {table.text('goal')})."
    )


def plans(results: Results) -> Frame:
    frame = runs_frame(results, NAME, task="train", done=True)
    # Of each round that timed layers too: the predicted step and the measured ones.
    steps = [[step for round_ in run.rounds for step in _predicted(round_)] for run in frame["run"]]
    frame["rounds"] = [*map(len, steps)]
    frame[PREDICTED] = [1e3 * median(p for p, _ in each) if each else nan for each in steps]
    frame[MEASURED] = 1e3 * frame["step_s"]
    errors = [[[100 * (p / real - 1) for real in blocks] for p, blocks in each] for each in steps]
    frame = with_interval(frame, ERROR, map(interval_of_sets, errors))
    frame = frame.dropna(subset=PREDICTED).sort_values(PREDICTED)
    for rank, step in (("rank predicted", PREDICTED), ("rank measured", MEASURED)):
        frame[rank] = frame.groupby("where")[step].rank(method="min").astype(int)
    return frame.rename(columns={"remat": "recomputed"})


def _predicted(round_: Round) -> list[tuple[float, tuple[float, ...]]]:
    """The predicted step of a round, if it timed layers too, and the measured ones of its blocks.

    Layers beside replicas never compute alone, so their times are those of all processes at once.
    """
    assert isinstance(round_.record, TrainRound)
    ways = round_.record.predicted
    seconds = ways.get("mixed", ways.get("together"))
    return [] if seconds is None else [(seconds, round_.blocks)]


def verdict(results: Results, frame: Frame) -> Table:
    lines = []
    for where in frame["where"].unique():
        here = select(frame, where=where)
        advised, best = (here.loc[here[step].idxmin()] for step in (PREDICTED, MEASURED))
        ratio = ratio_of(results, best["run"], advised["run"])
        line: dict[str, Any] = {"where": where, "plans": len(here)}
        line |= {"advised": _name(advised), "fastest measured": _name(best)}
        line |= estimated("advised over fastest", ratio)
        goal = met_or_missed(ratio[0], at_most=GOAL)
        line["goal"] = "not judged: tiny models" if advised["scale"] in TINY else goal
        lines.append(line)
    return framed(results, f"{NAME}_verdict", pd.DataFrame(lines), ABOUT, keep_where=True)


def _name(plan: pd.Series) -> str:
    settings = ", ".join(f"{name}={plan[name]}" for name in "KDM")
    return f"{plan['method']}, {settings}, recomputed {plan['recomputed']}"
