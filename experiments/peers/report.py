"""Our pipeline beside other libraries: are they right, and how do their steps compare?

A run belongs here if a peer library ran it, or if a peer ran the same point.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan, nan

from experiments.peers.runs import GOALS, NAME
from repro.harness.results import Results, Run
from repro.harness.schema import CheckRound, Finding
from repro.paper import theory
from repro.report.compare import fidelities, matching, rows_of, suffix, where
from repro.report.declared import Shown
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    met_or_missed,
    milliseconds,
    plain,
    quotient,
    settings,
)
from repro.report.ratio import NO_INTERVAL, Ratio, over
from repro.report.style import model_name
from repro.report.table import Table

NOTHING = Ratio(nan, nan, nan, 0, "not measured")
NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torch-1f1b": "torch.distributed.pipelining, Schedule1F1B",
    "torch-interleaved": "torch.distributed.pipelining, ScheduleInterleaved1F1B",
    "deepspeed": "DeepSpeed 0.19, PipelineEngine",
    "torchgpipe": "torchgpipe 0.0.7",
}
SHOWN = Shown(
    "peers_speed",
    (
        "peer",
        "model",
        "M",
        "schedule",
        "remat",
        "throughput, ours over peer",
        "verdict",
    ),
)


def tables(results: Results) -> list[Table]:
    runs = rows_of(results, experiment=NAME)
    checked = [run for run in runs if run.spec.task == "check"]
    timed = [run for run in runs if run.spec.task == "train"]
    made = [checks(results, checked)] if checked else []
    made += [speed(results, f, matching(timed, fidelity=f)) for f in fidelities(timed)]
    return made


def answer(tables: Mapping[str, Table]) -> str:
    verdicts = tables["peers_speed"].shown["verdict"].tolist()
    return (
        f"Of {len(verdicts)} points measured beside other libraries, ours is faster at "
        f"{verdicts.count('faster')}, slower at {verdicts.count('slower')}, and at "
        f"{verdicts.count('not distinguishable')} the two are not distinguishable."
    )


@dataclass(frozen=True)
class Check:
    """One check of one library; without a name and a finding where the library did not run."""

    run: Run
    name: str = ""
    finding: Finding | None = None


def checks(results: Results, runs: list[Run]) -> Table:
    """Library and check: verdict, greatest difference from the unsplit model, evidence."""
    lines = []
    for run in runs:
        record = run.rounds[-1].record if run.rounds else None
        if isinstance(record, CheckRound):
            lines += [Check(run, name, finding) for name, finding in record.checks.items()]
        else:
            lines.append(Check(run))

    def verdict(check: Check) -> Cell:
        return plain(check.finding.verdict if check.finding else check.run.status)

    def difference(check: Check) -> Cell:
        value = check.finding.value if check.finding else None
        return Cell() if value is None else Cell(value, f"{value:.1e}")

    columns: list[Column[Check]] = [
        Column("library", lambda check: plain(NAMES[check.run.library])),
        Column("where", lambda check: plain(where(results, check.run))),
        Column("model", lambda check: plain(model_name(check.run.model))),
        Column("K", lambda check: plain(check.run.K)),
        Column("check", lambda check: plain(check.name)),
        Column("verdict", verdict),
        Column("greatest difference", difference, csv="value"),
        Column("evidence", lambda check: plain(check.finding.evidence if check.finding else "")),
    ]
    note = (
        "Each library against the unsplit model on the same micro-batches, with recomputation. "
        "Refused: the library raises an error."
    )
    title = "Does each library train as one device would?"
    return declared("peers_checks", title, note, lines, columns, NAME)


@dataclass(frozen=True)
class Pair:
    """A peer's run and ours at the same point.

    Attributes:
        ours: our run; None where there is none.
        ratio: throughput of ours over the peer's.
        noise: the A/A ratio of ours that they are held against.
    """

    peer: Run
    ours: Run | None
    ratio: Ratio
    noise: Ratio

    @property
    def verdict(self) -> str:
        """Faster or slower, if the ratio lies clear of the A/A interval and its inverse."""
        if isnan(self.ratio.value):
            return ""
        if isnan(self.ratio.low):
            return "too few rounds"
        if isnan(self.noise.low):
            return "no A/A interval"
        # Which of two equal runs is divided by the other is arbitrary.
        noise = max(1.0, self.noise.high, 1 / self.noise.low)
        if self.ratio.low > noise:
            return "faster"
        if self.ratio.high < 1 / noise:
            return "slower"
        return "not distinguishable"


def pair_of(results: Results, peer: Run) -> Pair:
    ours = results.baseline(peer, library="repro")
    ratio = over(results, ours, library=peer.library) if ours else NOTHING
    return Pair(peer, ours, ratio, noise_of(results, peer))


def noise_of(results: Results, peer: Run) -> Ratio:
    """The widest A/A ratio of the same model, fidelity and place; NaN without an interval.

    A/A: throughput of our run with another seed over that with seed 0, everything else equal.
    """
    alike = {"place": peer.place, "model": peer.model, "fidelity": peer.fidelity}
    ours = matching(results.runs, library="repro", **alike)
    repeated = [over(results, run, seed=0) for run in ours if run.spec.seed]
    intervals = [ratio for ratio in repeated if not isnan(ratio.low)]
    return max(intervals, key=lambda ratio: ratio.high - ratio.low, default=NOTHING)


def speed(results: Results, fidelity: str, runs: list[Run]) -> Table:
    def ratio(pair: Pair) -> Cell:
        return quotient(pair.ratio) if pair.ratio.rounds else Cell(text=pair.peer.status)

    def ideal(pair: Pair) -> Cell:
        return amount(ideal_ratio(pair.peer)) if pair.peer.library == "torch" else Cell()

    def runtime(pair: Pair) -> Cell:
        if pair.peer.library != "torch":
            return Cell()
        explained = ideal_ratio(pair.peer)
        value, low, high = pair.ratio.value, pair.ratio.low, pair.ratio.high
        rest = {"value": value / explained, "low": low / explained, "high": high / explained}
        return quotient(replace(pair.ratio, **rest))

    def goal(pair: Pair) -> Cell:
        is_gpipe = pair.peer.schedule == "gpipe"
        ratio = GOALS.get((pair.peer.K, pair.peer.M)) if is_gpipe else None
        return Cell() if ratio is None else met_or_missed(pair.ratio.value, at_least=ratio)

    columns: list[Column[Pair]] = [
        Column("peer", lambda pair: plain(pair.peer.library), csv="library"),
        Column("model", lambda pair: Cell(pair.peer.model, model_name(pair.peer.model))),
        Column("where", lambda pair: plain(where(results, pair.peer))),
        *settings(lambda pair: pair.peer, "K", "M", "N", "schedule", "remat", "fidelity"),
        Column(
            "ours (ms)",
            lambda pair: milliseconds(pair.ours.step_s if pair.ours else nan),
            csv="ours_s",
        ),
        Column("peer (ms)", lambda pair: milliseconds(pair.peer.step_s), csv="peer_s"),
        Column("throughput, ours over peer", ratio, csv="ratio", ends=("low", "high")),
        Column("", lambda pair: Cell(pair.ratio.rounds), csv="rounds"),
        Column(
            "A/A",
            lambda pair: quotient(pair.noise),
            csv="noise",
            ends=("noise_low", "noise_high"),
        ),
        Column("verdict", lambda pair: plain(pair.verdict)),
    ]
    if fidelity == "emulated":
        columns.append(Column("goal", goal))
        columns.append(Column("ratio of the schedules, simulated", ideal, csv="ideal"))
        columns.append(Column("ratio over that, emulated", runtime, csv="runtime"))
    note = (
        "Throughput of ours over the peer's with the same schedule, inside a round, with a "
        f"bootstrap 95 % interval over rounds ({NO_INTERVAL}; ~ where it spans 1). A/A is that of "
        "one point of ours that was measured as two runs; faster and slower need an interval "
        "clear of 1 and of the A/A interval, whichever of the two runs is divided."
    )
    lines = [pair_of(results, run) for run in runs if run.library != "repro"]
    title = f"Step time beside other libraries, {fidelity}"
    return declared(f"peers_speed{suffix(fidelity)}", title, note, lines, columns, NAME)


def ideal_ratio(peer: Run) -> float:
    """The peer's ideal step over ours, with equal stages, F:R:B = 1:1:2 and free messages.

    The peer recomputes a micro-batch only when its gradient has arrived: the plain form.
    """
    R = 1.0 if peer.remat == "always" else 0.0
    ours = theory.step_time(peer.K, peer.M, "early", R=R)
    return theory.step_time(peer.K, peer.M, "plain", R=R) / ours
