"""Our pipeline beside other libraries: which trains as one device would, and how their steps compare.

A run belongs here if a peer library ran it, or if a peer ran the same point.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import isnan, nan

from experiments.peers.runs import NAME
from repro.gpipe.schedule.kinds import make_schedule, schedule_from_orders
from repro.gpipe.schedule.replay import replay
from repro.harness.results import Results, Run
from repro.harness.schema import CheckRound, Finding
from repro.paper.theory import UNIT_COSTS
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
from repro.report.texts import IDEAL

FOLDED = ("peers_points*",)
NAMES = {
    "repro": "ours",
    "torch": "torch.distributed.pipelining, ScheduleGPipe",
    "torchgpipe": "torchgpipe 0.0.7",
}


def tables(results: Results) -> list[Table]:
    """What was checked, what was timed, and what noise alone does."""
    rows = rows_of(results, experiment=NAME)
    checked = [row for row in rows if row.spec.task == "check"]
    timed = [row for row in rows if row.spec.task == "train"]
    twins = [row for row in timed if row.spec.seed and results.baseline(row, seed=0)]
    found = [checks(results, checked)] * bool(checked)
    found += [
        speed(results, fidelity, matching(timed, fidelity=fidelity))
        for fidelity in fidelities(timed)
    ]
    return found + [noise(results, twins)] * bool(twins)


@dataclass(frozen=True)
class Checked:
    """One check of one library; no check where the library was not run."""

    run: Run
    check: str = EMPTY
    finding: Finding | None = None

    @property
    def verdict(self) -> Cell:
        """The verdict with the greatest difference, or why there is none."""
        if self.finding is None:
            return Cell(text=self.run.status)
        text = self.finding.verdict
        if self.finding.value is not None:
            text += f" ({self.finding.value:.1e})"
        return Cell(self.finding.verdict, text)


def checks(results: Results, rows: list[Run]) -> Table:
    """One line a library and check: verdict, greatest difference from the unsplit model, evidence."""
    lines = []
    for run in rows:
        if not run.rounds:
            lines.append(Checked(run))
            continue
        record = run.rounds[-1].record
        assert isinstance(record, CheckRound)
        lines += [Checked(run, name, finding) for name, finding in record.checks.items()]
    columns: list[Column[Checked]] = [
        Column("library", lambda line: plain(NAMES[line.run.library])),
        Column("scale", lambda line: plain(line.run.scale)),
        Column("model", lambda line: plain(model_name(line.run.model))),
        Column("check", lambda line: plain(line.check)),
        Column("verdict", lambda line: line.verdict),
        Column("", lambda line: Cell(line.finding.value if line.finding else nan), csv="value"),
        Column("evidence", lambda line: plain(line.finding.evidence if line.finding else EMPTY)),
    ]
    note = (
        "Each library against the unsplit model on the same micro-batches, K=2, always "
        "recomputed; in brackets the greatest difference. Gradients and loss: of the mini-batch "
        "mean. Batch norm: running statistics after one step are to have moved once, by the "
        "mini-batch's mean and unbiased variance. Evaluation: with whatever statistics training "
        "left. Dropout: gradients with recomputation against those without. Unequal: one example "
        "more than a multiple of M."
    )
    title = "Does each library train as one device would?"
    return declared("peers_checks", title, note, lines, columns, NAME)


@dataclass(frozen=True)
class Pair:
    """A peer's point, ours, and throughput of ours over the peer's."""

    peer: Run
    own: Run | None
    ratio: Ratio

    def explained(self) -> tuple[Cell, Cell]:
        """Of stages of known duration: the peer's ideal step over ours, and the measured ratio over that."""
        if self.peer.library != "torch":
            return Cell(), Cell()
        ours, theirs = ideal_steps(self.peer.K, self.peer.M, self.peer.remat)
        ends = {end: getattr(self.ratio, end) * ours / theirs for end in ("value", "low", "high")}
        return amount(theirs / ours), quotient(replace(self.ratio, **ends))


def speed(results: Results, fidelity: str, rows: list[Run]) -> Table:
    """Step time of ours and of each peer, their ratio, and what of it the schedules explain where stages are equal."""
    pairs = []
    for peer in rows:
        if peer.library != "repro":
            own = results.baseline(peer, library="repro")
            ratio = (
                over(results, own, library=peer.library)
                if own
                else Ratio(nan, nan, nan, 0, "not measured")
            )
            pairs.append(Pair(peer, own, ratio))
    columns: list[Column[Pair]] = [
        Column("peer", lambda pair: plain(pair.peer.library), csv="library"),
        Column("model", lambda pair: Cell(pair.peer.model, model_name(pair.peer.model))),
        *settings(lambda pair: pair.peer, "scale", "K", "M", "N", "fidelity"),
        Column(
            "ours (ms)",
            lambda pair: milliseconds(pair.own.step_s if pair.own else nan),
            csv="ours_s",
        ),
        Column("peer (ms)", lambda pair: milliseconds(pair.peer.step_s), csv="peer_s"),
        Column(
            "throughput, ours over peer",
            lambda pair: quotient(pair.ratio) if pair.ratio.rounds else Cell(text=pair.peer.status),
            csv="ratio",
            ends=("low", "high"),
        ),
        Column("", lambda pair: Cell(pair.ratio.rounds), csv="rounds"),
        Column("verdict", lambda pair: Cell(text=pair.ratio.verdict), csv=""),
    ]
    note = (
        "Throughput of ours over the peer's at the same model, cut, K, M, N and "
        "re-materialization, inside a round; [low, high]: bootstrap 95 % interval over rounds, "
        f"{NO_INTERVAL}; ~ where it spans 1. Steps are medians over rounds, timed alike and "
        "without spans."
    )
    if fidelity == "emulated":
        columns.append(Column("ideal, simulated", lambda pair: pair.explained()[0], csv="ideal"))
        columns.append(Column("runtime, emulated", lambda pair: pair.explained()[1], csv="runtime"))
        note += (
            f" {IDEAL} Here the peer's ideal step over ours. Runtime: the measured ratio over that."
        )
    title = f"Step time beside other libraries, {fidelity}"
    return declared(f"peers_speed{suffix(fidelity)}", title, note, pairs, columns, NAME)


@cache
def ideal_steps(K: int, M: int, remat: str) -> tuple[float, float]:
    """Steps of our schedule and of the peer's in units of F, stages equal, F:R:B = 1:1:2, messages free.

    The peer recomputes a micro-batch only when its gradient has arrived, and runs backwards in the
    order of the forwards; paper/theory.py's early and plain form.
    """
    early = make_schedule("gpipe", K, M, remat)
    kinds = "RB" if remat == "always" else "B"
    orders = [
        [("F", j, i) for i in range(M)] + [(kind, j, i) for i in range(M) for kind in kinds]
        for j in range(K)
    ]
    late = schedule_from_orders("forward order, recomputed late", M, remat, orders, late=True)
    ours, theirs = (
        replay(schedule, lambda action: UNIT_COSTS[action.kind]).step_time
        for schedule in (early, late)
    )
    return ours, theirs


def noise(results: Results, rows: list[Run]) -> Table:
    """The same point measured as two runs, which differ in their seed: a ratio of 1 is to lie in the interval."""

    def inside(row: Run) -> Cell:
        ratio = over(results, row, seed=0)
        return plain(EMPTY if isnan(ratio.low) else "yes" if ratio.low <= 1 <= ratio.high else "no")

    columns: list[Column[Run]] = [
        Column("model", lambda row: plain(model_name(row.model))),
        *settings(lambda row: row, "scale", "K", "M", "N", "fidelity"),
        Column("rounds", lambda row: plain(len(row.rounds))),
        Column("ratio", lambda row: plain(over(results, row, seed=0))),
        Column("1 is inside", inside),
    ]
    note = (
        "Throughput with seed 1 over that with seed 0, everything else equal; 95 % interval, "
        f"{NO_INTERVAL}."
    )
    title = "The same point measured twice: what noise alone does"
    return declared("peers_noise", title, note, rows, columns, NAME)
