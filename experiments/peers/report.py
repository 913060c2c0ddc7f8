"""Our pipeline beside other libraries: are they right, and how do their steps compare?

A run belongs here if a peer library ran it, or if a peer ran the same point.
"""

from dataclasses import dataclass, replace
from math import isnan, nan

from experiments.peers.runs import NAME
from repro.harness.results import Results, Run
from repro.harness.schema import CheckRound, Finding
from repro.paper import theory
from repro.report.compare import fidelities, matching, rows_of, suffix
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    milliseconds,
    plain,
    quotient,
    settings,
)
from repro.report.ratio import NO_INTERVAL, Ratio, over
from repro.report.style import model_name
from repro.report.table import EMPTY, Table

FOLDED = ("peers_points*",)
NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torchgpipe": "torchgpipe 0.0.7",
}


def tables(results: Results) -> list[Table]:
    """What was checked, what was timed, and what noise alone does."""
    runs = rows_of(results, experiment=NAME)
    checked = [run for run in runs if run.spec.task == "check"]
    timed = [run for run in runs if run.spec.task == "train"]
    repeated = [run for run in timed if run.spec.seed and results.baseline(run, seed=0)]
    made = [checks(checked)] if checked else []
    made += [speed(results, f, matching(timed, fidelity=f)) for f in fidelities(timed)]
    if repeated:
        made.append(noise(results, repeated))
    return made


@dataclass(frozen=True)
class Check:
    """One check of one library; without a name and a finding where the library did not run."""

    run: Run
    name: str = ""
    finding: Finding | None = None


def checks(runs: list[Run]) -> Table:
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
        *settings(lambda check: check.run, "scale"),
        Column("model", lambda check: plain(model_name(check.run.model))),
        Column("check", lambda check: plain(check.name)),
        Column("verdict", verdict),
        Column("greatest difference", difference, csv="value"),
        Column("evidence", lambda check: plain(check.finding.evidence if check.finding else "")),
    ]
    note = (
        "Each library against the unsplit model on the same micro-batches, at K=2 with "
        "recomputation. Refused: the library raises an error."
    )
    title = "Does each library train as one device would?"
    return declared("peers_checks", title, note, lines, columns, NAME)


@dataclass(frozen=True)
class Pair:
    """A peer's run, ours at the same point, and the throughput of ours over the peer's."""

    peer: Run
    ours: Run | None
    ratio: Ratio


def pair_of(results: Results, peer: Run) -> Pair:
    """A peer's run and ours at the same point."""
    ours = results.baseline(peer, library="repro")
    if ours is None:
        return Pair(peer, None, Ratio(nan, nan, nan, 0, "not measured"))
    return Pair(peer, ours, over(results, ours, library=peer.library))


def speed(results: Results, fidelity: str, runs: list[Run]) -> Table:
    """Step time of ours and of each peer, and their ratio."""

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

    columns: list[Column[Pair]] = [
        Column("peer", lambda pair: plain(pair.peer.library), csv="library"),
        Column("model", lambda pair: Cell(pair.peer.model, model_name(pair.peer.model))),
        *settings(lambda pair: pair.peer, "scale", "K", "M", "N", "fidelity"),
        Column(
            "ours (ms)",
            lambda pair: milliseconds(pair.ours.step_s if pair.ours else nan),
            csv="ours_s",
        ),
        Column("peer (ms)", lambda pair: milliseconds(pair.peer.step_s), csv="peer_s"),
        Column("throughput, ours over peer", ratio, csv="ratio", ends=("low", "high")),
        Column("", lambda pair: Cell(pair.ratio.rounds), csv="rounds"),
        Column("verdict", lambda pair: Cell(text=pair.ratio.verdict), csv=""),
    ]
    note = (
        "Throughput of ours over the peer's at the same model, cut, K, M, N and "
        "re-materialization, inside a round; [low, high] is a bootstrap 95 % interval over rounds "
        f"({NO_INTERVAL}), ~ where it spans 1."
    )
    if fidelity == "emulated":
        columns.append(Column("ideal, simulated", ideal, csv="ideal"))
        columns.append(Column("runtime, emulated", runtime, csv="runtime"))
        note += (
            " Ideal: the peer's step over ours by the closed forms of the two schedules; runtime: "
            "the ratio over that."
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


def noise(results: Results, runs: list[Run]) -> Table:
    """The same point measured as two runs, which differ in their seed: does the interval hold 1?"""

    def holds_one(run: Run) -> Cell:
        ratio = over(results, run, seed=0)
        if isnan(ratio.low):
            return plain(EMPTY)
        return plain("yes" if ratio.low <= 1 <= ratio.high else "no")

    columns: list[Column[Run]] = [
        Column("model", lambda run: plain(model_name(run.model))),
        *settings(lambda run: run, "scale", "K", "M", "N", "fidelity"),
        Column("rounds", lambda run: plain(len(run.rounds))),
        Column("ratio", lambda run: plain(over(results, run, seed=0))),
        Column("1 is inside", holds_one),
    ]
    note = (
        "Throughput with seed 1 over that with seed 0, everything else equal; 95 % interval, "
        f"{NO_INTERVAL}."
    )
    title = "The same point measured twice: what noise alone does"
    return declared("peers_noise", title, note, runs, columns, NAME)
