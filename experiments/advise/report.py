"""Is the advised plan fast? Predicted beside measured steps; the advised plan is marked."""

from math import nan
from statistics import median

from repro.experiments.advise.runs import ABOUT, NAME
from repro.harness.frame import Frame, ratio_of, runs_frame, select
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.harness.text import ranged
from repro.report.compare import predicted_step
from repro.report.framed import framed, with_interval
from repro.report.table import Table

PREDICTED, MEASURED, ERROR = "step (ms) predicted", "step (ms) measured", "error (%) predicted"


def tables(results: Results) -> list[Table]:
    frame = plans(results)
    shown = ["where", "plan", "recomputed", PREDICTED, MEASURED]
    shown += [ERROR, f"{ERROR}: low", f"{ERROR}: high"]
    return [framed(NAME, frame[shown], ABOUT)]


def plans(results: Results) -> Frame:
    """A line for each plan with a predicted step, the shortest first; the advised one is marked."""
    frame = runs_frame(results, NAME, task="train", done=True)
    # Of each round that timed layers too: the predicted step, and the measured ones of its blocks.
    steps = [
        [(seconds, round_.blocks) for round_ in run.rounds if (seconds := predicted_step(round_))]
        for run in frame["run"]
    ]
    frame[PREDICTED] = [1e3 * median(s for s, _ in each) if each else nan for each in steps]
    frame[MEASURED] = 1e3 * frame["step_s"]
    errors = [[[100 * (s / real - 1) for real in blocks] for s, blocks in each] for each in steps]
    frame = with_interval(frame, ERROR, map(interval_of_sets, errors))
    frame = frame.dropna(subset=PREDICTED).sort_values(PREDICTED)
    frame["plan"] = [
        f"{method}, K={K}, D={D}, M={M}"
        for method, K, D, M in frame[["method", "K", "D", "M"]].itertuples(index=False)
    ]
    for where in frame["where"].unique():
        here = select(frame, where=where)
        frame.loc[here[PREDICTED].idxmin(), "plan"] += _mark(results, here)
    return frame.rename(columns={"recompute": "recomputed"})


def _mark(results: Results, plans: Frame) -> str:
    """Behind the advised plan: its step over that of the plan that was measured to be fastest."""
    advised, fastest = (plans.loc[plans[step].idxmin(), "run"] for step in (PREDICTED, MEASURED))
    if advised is fastest:
        return " (advised, the fastest)"
    return f" (advised, {ranged(*ratio_of(results, fastest, advised))} of the fastest)"
