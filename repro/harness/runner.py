"""Measure what plans leave open, and show a reporter what happens.

A round measures each run of a group once. Runs that a clock times are measured together, step
against step, by processes of their own; rounds are recorded one by one. Runs that take one process
and are not timed are made side by side, one on each core.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from repro.gpipe.runtime.group import torchrun
from repro.harness.cut import cut_key
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, PlannedRun
from repro.harness.predict import with_predictions
from repro.harness.progress import ProgressReporter
from repro.harness.request import Request, Result, Status
from repro.harness.spec import TIMED, Group, Scale
from repro.harness.tasks import fit
from repro.harness.workers import Workers
from repro.io import signals
from repro.io.untrusted import refuse_links

# seconds for one run
DEADLINES: dict[Scale, float] = {
    "smoke": 180,
    "laptop": 600,
    "overnight": 3600,
    "gpu": 480,
    "node": 1800,
    "paper": 7200,
}
COUNTS = 4  # that one core makes before they are recorded


# Shows runs of a group that have all their rounds now.
ShowDone = Callable[[Plan, Sequence[PlannedRun]], None]
# Shows a part of an experiment that took so many seconds; also gets the parts that follow.
ShowPart = Callable[[Plan, float, Sequence[Plan]], None]


def measure(
    plans: Sequence[Plan],
    results: Path,
    reporter: ProgressReporter,
    show_done: ShowDone,
    show_part: ShowPart,
) -> None:
    """Record the plans, and measure what they leave open.

    Only for the process that holds the lock of the results, under which the plans were made.
    """
    parts = in_parts(plans)
    workers = workers_for(parts, results) if parts else None
    for plan in plans:
        prepare(plan)
    if workers is None:
        return
    with workers:
        reporter.begin(parts)
        for number, part in enumerate(parts, start=1):
            began = time.monotonic()
            for group in part.experiment.groups:
                Rounds(part, group.name, workers, reporter, show_done).measure()
            show_part(part, time.monotonic() - began, parts[number:])


def in_parts(plans: Sequence[Plan]) -> list[Plan]:
    """The plans in the order of measurement, in which an experiment may be several parts.

    Verdicts rest on groups that are `first`. Of these, what no clock times begins: the paper's
    exhibits, the shortest before longer ones, then what goes beyond the paper. All other groups
    follow, in the order of the plans.
    """
    parts: tuple[list[Plan], ...] = [], [], []
    for plan in plans:
        turns = {group.name: _turn(group) for group in plan.experiment.groups}
        for turn, part in enumerate(parts):
            runs = tuple(run for run in plan.runs if turns[run.group] == turn)
            part.append(replace(plan, runs=runs))
    parts[0].sort(key=lambda part: (not part.is_of_paper, part.seconds))
    return [part for of_turn in parts for part in of_turn if part.outstanding]


def _turn(group: Group) -> int:
    """0: it is first, and no clock times its runs; 1: it is first; 2: it is another."""
    timed = any(spec.timed and spec.fidelity == "measured" for spec in group.runs)
    return int(timed) if group.first else 2


def prepare(plan: Plan) -> None:
    """Remove leftovers of kills in the plan's folder, and record its runs and statuses."""
    journal = plan.journal
    journal.remove_leftovers()
    journal.plan(plan.experiment, plan.machine, plan.command, accumulate=plan.accumulate)
    journal.set_status({run.id: run.status for run in plan.runs if run.status.word != "planned"})


@dataclass
class Rounds:
    """The new rounds of one group of a plan."""

    plan: Plan
    group: str
    workers: Workers
    reporter: ProgressReporter
    show_done: ShowDone
    _replaced: set[str] = field(default_factory=set)  # whose first new round replaces the old ones
    _failed: set[str] = field(default_factory=set)
    _cuts: dict[str, tuple[int, ...]] = field(default_factory=dict)  # by `cut_key`

    def measure(self) -> None:
        """Measure and record one round after the other; later rounds leave out runs that failed."""
        journal, planned = self.plan.journal, self.plan.fresh_rounds(self.group)
        runs = {run.id: run for members in planned for run in members}
        if self.plan.force:
            self._replaced = {run.id for run in runs.values() if not run.added}
        for run in runs.values():
            earlier = journal.rounds_of(run.id)
            if earlier and run.id not in self._replaced:
                self._cuts[cut_key(run.spec)] = tuple(earlier[-1].records[run.id]["balance"])
        for number, members in enumerate(planned, start=1):
            if all(run.id in self._failed for run in members):
                return
            self.reporter.round(self.plan, self.group, number, len(planned))
            for part in self._parts(members):
                self._round(number, part)

    def _parts(self, members: list[PlannedRun]) -> list[list[PlannedRun]]:
        """The runs of a round in parts, each of which is recorded as soon as it is there.

        Runs that are divided by each other stay together. Fits and trainings to a quality are not.
        """
        if members[0].spec.task not in ("fit", "learn"):
            return [members]
        apart = [run for run in members if self._request(run).apart]
        return [*self._by_cores(apart), *([run] for run in members if run not in apart)]

    def _by_cores(self, runs: list[PlannedRun]) -> list[list[PlannedRun]]:
        """Runs that take one core each: a training for each core, or a few counts.

        A core goes on to its next count without waiting for the other cores.
        """
        each = 1 if runs and runs[0].spec.task == "learn" else COUNTS
        size = each * self.plan.machine.count
        return [runs[start : start + size] for start in range(0, len(runs), size)]

    def _round(self, number: int, members: list[PlannedRun]) -> None:
        """Measure runs once, and record what has a result."""
        started, journal = _now(), self.plan.journal
        for run in (run for run in members if run.id in self._failed):
            self.reporter.advance(run)
        runs = [run for run in members if run.id not in self._failed]
        results, failed, together = self._measured(runs)
        # A baseline that only accompanies other runs stays done, even if it fails here.
        missing = {run.id for run in members if run.missing >= number}
        journal.set_status({run: status for run, status in failed.items() if run in missing})
        self._failed |= failed.keys()
        if not results:
            return
        results = with_predictions({run.id: run.spec for run in members}, results)
        done = [run for run in members if run.id in results and run.missing == number]
        journal.commit(
            self.group,
            results,
            self.plan.machine,
            (started, _now()),
            together=together,
            done=[run.id for run in done],
            replacing=sorted(self._replaced & results.keys()),
        )
        self._replaced -= results.keys()
        self.show_done(self.plan, done)

    def _measured(
        self, runs: list[PlannedRun]
    ) -> tuple[dict[str, Result], dict[str, Status], list[str]]:
        """The results of runs, the statuses of those without, and what was step against step."""
        found: dict[str, Result | Status] = {}
        timed = [run for run in runs if run.spec.timed and run.spec.task == "train"]
        for beside in self._by_cores([run for run in runs if self._request(run).apart]):
            found |= self._at_once(beside, {run.id: self._request(run) for run in beside})
        for run in (run for run in runs if run not in timed and run.id not in found):
            found[run.id] = self._alone(run, self._request(run))
        together = self._together(timed, found)
        results = {name: each for name, each in found.items() if isinstance(each, Result)}
        failed = {name: each for name, each in found.items() if isinstance(each, Status)}
        return results, failed, [name for name in together if name in results]

    def _together(
        self, runs: list[PlannedRun], found: dict[str, Result | Status]
    ) -> dict[str, Result | Status]:
        """Measure runs step against step, as far as memory allows, and the others in turn.

        Enters what it found of each; returns what was measured step against step.
        """
        requests = {run.id: self._request(run) for run in runs}
        beside = runs
        at_once: dict[str, Result | Status] = {}
        while beside:
            at_once = self._at_once(beside, requests)
            found |= at_once
            if not at_once or len(at_once) == len(beside):
                break
            beside = [run for run in beside if run.id not in at_once]  # begin anew without it
        for run in (run for run in runs if run.id not in found):
            found[run.id] = self._alone(run, requests[run.id])
        return at_once

    def _at_once(
        self, runs: list[PlannedRun], requests: Mapping[str, Request]
    ) -> dict[str, Result | Status]:
        """The results of runs that are measured step against step or, if apart, side by side.

        Where one failed, the status of that one alone; nothing where the memory does not hold all.
        """
        signals.check()
        number = {run.id: n for n, run in enumerate(runs)}
        asked = tuple(
            replace(requests[run.id], bases=tuple(number[b] for b in run.bases if b in number))
            for run in runs
        )
        apart = asked[0].apart
        self.reporter.note(f"{len(runs)} runs, {'side by side' if apart else 'step against step'}")
        found = self.workers.measure_all(asked, self._deadline * len(runs), fresh=not apart)
        crowded = len(runs) > 1 and any(
            isinstance(each, Status) and each.word == "oom" for each in found.values()
        )
        if crowded and not apart:
            return {}
        return {runs[n].id: self._reported(runs[n], each) for n, each in found.items()}

    def _alone(self, run: PlannedRun, request: Request) -> Result | Status:
        signals.check()
        self.reporter.note(run.named)
        if run.spec.task == "fit" and run.spec.fidelity == "measured":
            return self._reported(run, fit.trained(self.workers.measure, request, self._deadline))
        return self._reported(run, self.workers.measure(request, self._deadline))

    @property
    def _deadline(self) -> float:
        return DEADLINES[self.plan.scale]

    def _reported(self, run: PlannedRun, found: Result | Status) -> Result | Status:
        if isinstance(found, Result):
            self._cuts[cut_key(run.spec)] = tuple(found.record.balance)
            self.reporter.advance(run)
        else:
            self.reporter.fail(run, found, self.workers.logs)
        return found

    def _request(self, run: PlannedRun) -> Request:
        spec, machine = run.spec, self.plan.machine
        earlier = [] if run.id in self._replaced else self.plan.journal.rounds_of(run.id)
        # Memory is read in the first round. Layers that wait keep nothing.
        read = not earlier and spec.fidelity != "emulated"
        device = machine.device if spec.fidelity in TIMED else "cpu"
        order = len(self.plan.journal.rounds)
        cut = self._cuts.get(cut_key(spec)) if spec.balance == "time" else None
        return Request(spec, cut, read, device, order)


def workers_for(plans: Sequence[Plan], results: Path) -> Workers:
    machine = plans[0].machine
    if torchrun_rank() is not None:
        return Workers(team=torchrun())
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    logs = results / machine.slug / plans[0].scale / "logs"
    refuse_links(results, logs)
    return Workers(logs / name, 0 if machine.device == "cpu" else machine.count)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
