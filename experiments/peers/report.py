"""Our pipeline beside other libraries: are they right, and how do their steps compare?"""

from collections.abc import Mapping
from math import isnan, nan
from typing import Any

import pandas as pd

from experiments.peers.runs import ABOUT, ENCODER, GOALS, NAME
from repro.harness.frame import Frame, controls_frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.schema import CheckRound
from repro.paper import theory
from repro.report.compare import fidelities, suffix
from repro.report.declared import Shown
from repro.report.framed import RATIO, Form, framed, in_ms, met_or_missed, or_status
from repro.report.style import model_name
from repro.report.table import EMPTY, Table

NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torch-1f1b": "torch.distributed.pipelining, Schedule1F1B",
    "torch-interleaved": "torch.distributed.pipelining, ScheduleInterleaved1F1B",
    "deepspeed": "DeepSpeed 0.19, PipelineEngine",
    "torchgpipe": "torchgpipe 0.0.7",
}
OVER = "throughput, ours over peer"
_WORK = ["where", "group"]
NOT_CLEAR = "not clear of A/A"
_SHOWN = [
    "run", "library", "model", "where", "K", "M", "N", "schedule", "remat", "fidelity", "ours_s",
    "peer_s", "ratio", "low", "high", "rounds", "noise", "noise_low", "noise_high", "verdict",
    "goal", "ideal", "runtime",
]  # fmt: skip
_HEADINGS = {
    "library": "peer",
    "ours_s": "ours (ms)",
    "peer_s": "peer (ms)",
    "ratio": OVER,
    "noise": "A/A",
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
    verdicts = [text for text in tables["peers_speed"].shown["verdict"] if text not in ("", EMPTY)]
    return (
        f"Of {len(verdicts)} points measured beside other libraries, ours is faster at "
        f"{verdicts.count('faster')} and slower at {verdicts.count('slower')}; at "
        f"{verdicts.count(NOT_CLEAR)} the ratio is no further from 1 than that of two equal runs."
    )


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
    peers = frame.loc[frame["library"] != "repro"]
    ours = [results.baseline(run, library="repro") for run in peers["run"]]
    found = [
        results.ratio(own, peer) if own and own.done else (nan, nan, nan, 0)
        for own, peer in zip(ours, peers["run"], strict=True)
    ]
    over = pd.DataFrame(found, columns=["ratio", "low", "high", "rounds"], index=peers.index)
    # A/A: the step of our run with another seed over that of the run itself.
    again = select(controls_frame(results, NAME), control="again").set_index(_WORK)
    noise = again[["step", "low", "high"]].set_axis(["noise", "noise_low", "noise_high"], axis=1)
    peers = peers.drop(columns="rounds").join(over).join(noise, on=_WORK)
    peers["ours_s"] = [own.step_s if own else nan for own in ours]
    peers["peer_s"] = peers["step_s"]
    peers["verdict"] = [verdict(line) for line in peers.to_dict("records")]
    peers["goal"] = [
        met_or_missed(line.ratio, at_least=GOALS[line.K, line.M])
        if line.schedule == "gpipe" and (line.K, line.M) in GOALS
        else None
        for line in peers.itertuples()
    ]
    ideal = pd.Series([ideal_ratio(run) for run in peers["run"]], peers.index, dtype=float)
    peers["ideal"] = ideal.where(peers["library"] == "torch")
    peers["runtime"] = peers["ratio"] / peers["ideal"]
    peers["ratio"] = or_status(peers, "ratio")
    shown = _SHOWN if fidelity == "emulated" else _SHOWN[:-3]
    forms: dict[str, Form] = {"ratio": RATIO, "noise": RATIO, "model": _model}
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
    )


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
    return "slower" if line["high"] < 1 / noise else NOT_CLEAR


def ideal_ratio(peer: Run) -> float:
    """The peer's ideal step over ours, with equal stages, F:R:B = 1:1:2 and free messages.

    The peer recomputes a micro-batch only when its gradient has arrived: the plain form.
    """
    R = 1.0 if peer.remat == "always" else 0.0
    ours = theory.step_time(peer.K, peer.M, "early", R=R)
    return theory.step_time(peer.K, peer.M, "plain", R=R) / ours
