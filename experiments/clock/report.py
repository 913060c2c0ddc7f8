"""The clock against Zero Bubble's settings: bubble rates, throughput, ratios between schedules."""

from math import nan
from typing import Any

import pandas as pd

from experiments.clock.runs import ABOUT, NAME, SCHEDULES
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.paper.numbers import Peer, zero_bubble
from repro.report.declared import Shown
from repro.report.framed import framed
from repro.report.table import Table

ERRORS = "clock_errors"
BUBBLE, SPEED = "bubble rate", "samples/s and GPU"
LONGER = "step longer than printed (messages)"
SHOWN = Shown(
    ERRORS,
    "schedule | bubble rate worst | bubble rate worst, textbook | throughput median | "
    "throughput worst | ratio median | ratio median, textbook",
)


def compared(results: Results) -> Frame:
    """A line for each setting and schedule: printed, simulated, and by the textbook's formula."""
    frame = runs_frame(results, NAME, task="train")
    rows = {(row.K, row.M, row.N): row for row in zero_bubble()}
    runs = [run for run in frame["run"] if run.done]
    lines = [_line(run, rows[run.K, run.M, run.spec.N]) for run in runs]
    return pd.DataFrame(lines).assign(run=runs) if lines else pd.DataFrame()


def _line(run: Run, row: Peer) -> dict[str, Any]:
    ms, schedule = {name: value or nan for name, value in row.values.items()}, run.schedule
    F, inner, W = (ms[f"{kind}_ms"] / 1e3 for kind in "FIW")
    K, M = run.K, run.M
    simple = theory.bubble_over_total(K, M * (run.spec.stages_per_rank or 1))
    work_s = M * (F + inner + W)
    if schedule == "zb-h1":
        idle_s = (K - 1) * (F + inner - W)
        simple = idle_s / (idle_s + work_s)
    printed_s = work_s / (1 - ms[f"bubble {schedule}"])
    samples = run.spec.N / K  # of a step, for each GPU
    return {
        "model": row.name,
        "K": K,
        "M": M,
        "schedule": schedule,
        f"{BUBBLE} quoted": ms[f"bubble {schedule}"],
        f"{BUBBLE} simulated": 1 - work_s / run.step_s,
        f"{BUBBLE} textbook": simple,
        LONGER: (run.step_s - printed_s) / (ms["link_ms"] / 1e3),
        f"{SPEED} quoted": ms[f"samples_per_gpu_s {schedule}"],
        f"{SPEED} simulated": samples / run.step_s,
        f"{SPEED} textbook": samples * (1 - simple) / work_s,
    }


def tables(results: Results) -> list[Table]:
    frame = compared(results)
    if not len(frame):
        return []
    forms = dict.fromkeys(frame.filter(like=BUBBLE), ".4f") | {LONGER: "+.1f"}
    return [
        framed(results, NAME, frame, ABOUT, forms=forms),
        framed(results, ERRORS, _errors(frame), ABOUT),
    ]


def _errors(frame: Frame) -> Frame:
    """A line for each schedule: the worst bubble rate, and errors of throughput and of ratios."""
    lines = []
    frame = frame.set_index(["model", "K", "M"])
    first = frame[frame["schedule"] == SCHEDULES[0]]
    for schedule, own in frame.groupby("schedule", sort=False):
        is_first = schedule == SCHEDULES[0]
        line: dict[str, Any] = {"schedule": schedule, "settings": len(own)}
        for way, end in (("simulated", ""), ("textbook", ", textbook")):
            off = 100 * (own[f"{BUBBLE} {way}"] - own[f"{BUBBLE} quoted"])
            speeds, bases = ({w: f[f"{SPEED} {w}"] for w in (way, "quoted")} for f in (own, first))
            errors = 100 * (speeds[way] / speeds["quoted"] - 1)
            ratios = {w: speeds[w] / bases[w] for w in speeds}
            of_ratio = 100 * (ratios[way] / ratios["quoted"] - 1).abs()
            line |= {
                f"bubble rate worst{end}": off.abs().max(),
                f"throughput median{end}": errors.median(),
                f"throughput worst{end}": errors.loc[errors.abs().idxmax()],
                f"ratio median{end}": nan if is_first else of_ratio.median(),
                f"ratio worst{end}": nan if is_first else of_ratio.max(),
            }
        lines.append(line)
    return pd.DataFrame(lines)
