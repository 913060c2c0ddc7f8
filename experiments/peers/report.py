"""Our pipeline beside other libraries: are they right, and how do their steps compare?"""

from collections.abc import Mapping
from math import isnan, nan
from typing import Any

import pandas as pd

from experiments.peers.runs import ABOUT, ENCODER, GOALS, NAME
from repro.harness.frame import Frame, controls_frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.schema import CheckRound
from repro.harness.spec import SLOWED
from repro.paper import theory
from repro.report.compare import fidelities, suffix
from repro.report.declared import Shown
from repro.report.framed import RATIO, Form, framed, in_ms, met_or_missed, or_status
from repro.report.style import model_name
from repro.report.table import Table

NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torch-1f1b": "torch.distributed.pipelining, Schedule1F1B",
    "torch-interleaved": "torch.distributed.pipelining, ScheduleInterleaved1F1B",
    "deepspeed": "DeepSpeed 0.19, PipelineEngine",
    "torchgpipe": "torchgpipe 0.0.7",
}
OVER = "throughput, ours over peer"
OVER_GLOO = "ours over gloo"  # in place of a peer
_NOISE = ["noise", "noise_low", "noise_high", "noise_M"]
_SHOWN = [
    "run", "library", "model", "where", "K", "M", "N", "schedule", "remat", "fidelity", "ours_s",
    "peer_s", "ratio", "low", "high", "rounds", *_NOISE, "verdict", "goal",
    "ideal", "runtime",
]  # fmt: skip
_HEADINGS = {
    "library": "peer",
    "ours_s": "ours (ms)",
    "peer_s": "peer (ms)",
    "ratio": OVER,
    "noise": "A/A",
    "noise_M": "A/A at M",
    "ideal": "ratio of the schedules, simulated",
    "runtime": "ratio over that, emulated",
}
SHOWN = Shown("peers_speed", f"peer | model | M | schedule | remat | {OVER} | verdict")


def tables(results: Results) -> list[Table]:
    frame = runs_frame(results, NAME)
    checked, timed = (select(frame, task=task) for task in ("check", "train"))
    speeds = (
        speed(results, fidelity, select(timed, fidelity=fidelity))
        for fidelity in fidelities(timed["run"])
    )
    return [checks(results, checked), *speeds]


def answer(tables: Mapping[str, Table]) -> str:
    """How many points ours is faster at; how many others lie below 1; what gloo costs it."""
    lines = tables["peers_speed"].data
    measured = lines.loc[lines["rounds"] > 0]
    over_gloo = select(measured, library=OVER_GLOO)["ratio"]
    points = measured.drop(over_gloo.index)
    verdicts = [*points["verdict"]]
    text = (
        f"Of {len(points)} points measured beside other libraries, ours is faster at "
        f"{verdicts.count('faster')} and slower at {verdicts.count('slower')}, by more than two "
        f"equal runs differ (A/A). Its ratio is below 1 at {(points['ratio'] < 1).sum()} points, "
        f"at {(points['high'] < 1).sum()} of them with the whole interval."
    )
    if elsewhere := ((points["noise_M"] - points["M"]).abs() > 0).sum():
        text += f" The A/A of another M judges {elsewhere} of them."
    if len(over_gloo):
        span = f"{over_gloo.min():.2f} to {over_gloo.max():.2f}"
        text += f" Over gloo, as the peers send, ours takes {span} times as long."
    return text


def checks(results: Results, frame: Frame) -> Table:
    lines = []
    for run in frame.to_dict("records"):
        record = run["record"]
        found = record.checks if isinstance(record, CheckRound) else {"": None}
        for check, finding in found.items():
            line = {"library": NAMES[run["library"]], "where": run["where"]}
            line |= {"model": model_name(run["model"]), "K": run["K"], "check": check}
            line["verdict"] = finding.verdict if finding else run["status"]
            line["value"] = finding.value if finding else nan
            line["evidence"] = finding.evidence if finding else ""
            lines.append(line | {"run": run["run"]})
    forms, headings = {"value": ".1e"}, {"value": "greatest difference"}
    name, table = f"{NAME}_checks", pd.DataFrame(lines)
    return framed(results, name, table, ABOUT, forms=forms, headings=headings, keep_where=True)


def speed(results: Results, fidelity: str, frame: Frame) -> Table:
    """A line for each run of a peer, or of ours over gloo, beside ours with its own transport."""
    over_gloo = frame["transport"] == "gloo"
    peers = frame.loc[over_gloo | (frame["library"] != "repro")]
    ours = [results.baseline(run, library="repro", transport="auto") for run in peers["run"]]
    found = [
        results.ratio(own, peer) if own and own.done else (nan, nan, nan, 0)
        for own, peer in zip(ours, peers["run"], strict=True)
    ]
    over = pd.DataFrame(found, columns=["ratio", "low", "high", "rounds"], index=peers.index)
    controls = select(controls_frame(results, NAME), fidelity=fidelity)
    again, slowed = (select(controls, control=name) for name in ("again", "slowed"))
    each = [noise_of(line, again) for line in peers.itertuples()]
    noise = pd.DataFrame(each, columns=_NOISE, index=peers.index)
    peers = peers.drop(columns="rounds").join([over, noise])
    peers["library"] = peers["library"].mask(over_gloo, OVER_GLOO)
    peers["ours_s"] = [own.step_s if own else nan for own in ours]
    peers["peer_s"] = peers["step_s"]
    peers["verdict"] = [verdict(line) for line in peers.to_dict("records")]
    peers["goal"] = [
        met_or_missed(line.ratio, at_least=GOALS[line.K, line.M])
        if line.library == "torch" and (line.K, line.M) in GOALS
        else None
        for line in peers.itertuples()
    ]
    ideal = pd.Series([ideal_ratio(run) for run in peers["run"]], peers.index, dtype=float)
    peers["ideal"] = ideal.where(peers["library"] == "torch")
    peers["runtime"] = peers["ratio"] / peers["ideal"]
    peers["ratio"] = or_status(peers, "ratio")
    shown = _SHOWN if fidelity == "emulated" else _SHOWN[:-3]
    forms: dict[str, Form] = {"ratio": RATIO, "noise": RATIO, "noise_M": ".0f", "model": _model}
    return framed(
        results,
        f"{NAME}_speed{suffix(fidelity)}",
        peers[shown],
        ABOUT,
        forms=forms | {"ours_s": in_ms, "peer_s": in_ms},
        headings=_HEADINGS,
        ends={"ratio": ("low", "high"), "noise": ("noise_low", "noise_high")},
        hidden=("rounds",),
        keep_where=True,
        fidelity=fidelity,
        slowed=_missed(slowed["low"] > 1),
    )


def noise_of(line: Any, again: Frame) -> list[float]:
    """The A/A of a point's group with its interval, and its M: the point's if that is recorded."""
    of_group = select(again, where=line.where, group=line.group)
    own = select(of_group, schedule=line.schedule, M=line.M)
    found = own if len(own) else of_group
    return [*found.iloc[-1][["step", "low", "high", "M"]]] if len(found) else [nan] * 4


def _missed(seen: pd.Series) -> str:
    """In how many groups the control that is slowed was not seen to be; empty without these."""
    groups = f"{(~seen).sum()} of {len(seen)} groups"
    return f" A step slowed by {SLOWED:.0%} is not told apart in {groups}." if len(seen) else ""


def _model(name: str) -> str:
    return "plain encoder" if name == ENCODER else model_name(name)


def verdict(line: Mapping[str, Any]) -> str:
    """Faster or slower, if the ratio lies clear of the A/A interval and its inverse."""
    if not line["rounds"]:
        return ""
    if isnan(line["low"]):
        return "too few rounds"
    if isnan(line["noise_low"]):
        return "no A/A interval"
    # Which of two equal runs is divided by the other is arbitrary.
    noise = max(1.0, line["noise_high"], 1 / line["noise_low"])
    if line["low"] > noise:
        return "faster"
    if line["high"] < 1 / noise:
        return "slower"
    reached = f"noise of {noise - 1:.1%}"
    if line["low"] <= 1 <= line["high"]:
        return f"within {reached}"
    return f"{'above' if line['low'] > 1 else 'below'} 1, reaches {reached}"


def ideal_ratio(peer: Run) -> float:
    """The peer's ideal step over ours, with equal stages, F:R:B = 1:1:2 and free messages.

    The peer recomputes a micro-batch only when its gradient has arrived: the plain form.
    """
    R = 1.0 if peer.remat == "always" else 0.0
    ours = theory.step_time(peer.K, peer.M, "early", R=R)
    return theory.step_time(peer.K, peer.M, "plain", R=R) / ours
