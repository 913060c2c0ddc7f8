"""Our pipeline beside other libraries: how do their steps compare?"""

from math import isnan

import pandas as pd

from repro.experiments.peers.runs import ABOUT, NAME
from repro.harness.frame import Frame, controls_frame, ratio_of, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.spec import ON_CPU
from repro.report.claim import Estimate
from repro.report.framed import framed, with_interval
from repro.report.style import model_name
from repro.report.table import Table

OVER, NOISE = "ours over peer", "A/A"
TRANSPORTS = ("auto", "gloo")  # through which ours sends
POINT = ["where", "group", "schedule", "M"]  # A/A judges the points of one group and M


def tables(results: Results) -> list[Table]:
    """A line for each run of a peer whose M has an A/A, and each transport of ours."""
    frame = runs_frame(results, NAME, task="train")
    peers = frame[frame["library"] != "repro"]
    lines = pd.concat([beside(results, peers, transport) for transport in TRANSPORTS])
    lines = with_noise(results, lines.sort_index(kind="stable")).dropna(subset=[OVER, NOISE])
    lines["step"] = [step_name(run) for run in lines["run"]]
    ends = {name: [name, f"{name}: low", f"{name}: high"] for name in (OVER, NOISE)}
    pairs = (lines[each].itertuples(index=False, name=None) for each in ends.values())
    lines["verdict"] = [verdict(*each) for each in zip(*pairs, strict=True)]
    point = ["where", "library", "step", "ours sends through"]
    table = lines[[*point, *ends[OVER], *ends[NOISE], "verdict"]]
    return [framed(NAME, table.rename(columns={"library": "peer"}), ABOUT)]


def beside(results: Results, peers: Frame, transport: str) -> Frame:
    """The peers that have ours with this transport beside them, and its throughput over theirs."""
    ours = [results.baseline(run, library="repro", transport=transport) for run in peers["run"]]
    present = [run is not None for run in ours]
    lines = peers.loc[present].assign(ours=[run for run in ours if run is not None])
    over = [ratio_of(results, *pair) for pair in zip(lines["ours"], lines["run"], strict=True)]
    lines["ours sends through"] = [through(run) for run in lines["ours"]]
    return with_interval(lines, OVER, over)


def through(run: Run) -> str:
    if run.spec.transport != "auto":
        return run.spec.transport
    return "shared memory" if run.scale in ON_CPU else "NCCL"


def with_noise(results: Results, lines: Frame) -> Frame:
    """The lines with A/A of their group and M: ours as two runs, one's step over the other's."""
    again = select(controls_frame(results, NAME), control="again")
    again = again[[*POINT, "step", "low", "high"]].drop_duplicates(POINT, keep="last")
    names = {"step": NOISE, "low": f"{NOISE}: low", "high": f"{NOISE}: high"}
    return lines.join(again.rename(columns=names).set_index(POINT), on=POINT)


def step_name(run: Run) -> str:
    """The work of a step: model, M, and whether it recomputes."""
    waits = f"{run.K} equal stages that wait (emulated)"
    recomputes = ", recomputes" if run.recompute == "always" else ""
    return f"{waits if run.model == 'timed' else model_name(run.model)}, M={run.M}{recomputes}"


def verdict(ratio: Estimate, noise: Estimate) -> str:
    """Faster or slower, if the ratio lies outside of the A/A interval and its inverse."""
    _, low, high = ratio
    _, least, most = noise
    if isnan(low) or isnan(least):
        return "too few blocks"
    # Which of two equal runs is divided by the other is arbitrary.
    reach = max(1.0, most, 1 / least)
    if low > reach:
        return "faster"
    return "slower" if high < 1 / reach else "within noise"
