"""Measure what plans leave open, and tell a reporter what happens.

A round measures each run of a group once. Runs that a clock times are measured together, step
against step, by processes of their own; rounds are recorded one by one. Runs that take one process
and are not timed are made side by side, one on each core.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from repro.gpipe.runtime.group import torchrun
from repro.harness.contention import CpuShare
from repro.harness.crew import Crew
from repro.harness.cut import TimedCuts
from repro.harness.job import Job, Measured, Outcome, takes_one_core
from repro.harness.journal import Status
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, PlannedRun
from repro.harness.predict import with_predictions
from repro.harness.progress import ProgressReporter
from repro.harness.spec import TIMED, WHOLE_WORLD, RunSpec, Scale
from repro.harness.tasks.emulate import prepare as prepare_emulation
from repro.harness.tasks.fit_search import Search
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
    watch = CpuShare()  # until the first round begins
    todo = [plan for plan in plans if plan.outstanding]
    crew = workers(todo, results) if todo else None
    for plan in plans:
        prepare(plan)
    if crew is None:
        return
    with crew:
        runs = [run for plan in todo for run in plan.runs]
        if any(run.missing and run.spec.fidelity in TIMED for run in runs):
            reporter.load(watch.share())
        reporter.begin(todo)
        parts = in_parts(todo)
        for number, part in enumerate(parts, start=1):
            began = time.monotonic()
            for group in part.experiment.groups:
                GroupRun(part, group.name, crew, reporter, show_done).measure()
            show_part(part, time.monotonic() - began, parts[number:])


def in_parts(plans: Sequence[Plan]) -> list[Plan]:
    """The plans in the order of measurement, in which an experiment may be two parts.

    Trainings and measured steps come last. Nearly all verdicts rest on what comes first: what is
    counted, and of the paper's exhibits what is simulated or emulated, the shortest exhibit at the
    beginning.
    """
    first, then = [], []
    for plan in plans:
        late = {
            run.group
            for run in plan.runs
            if _is_late(run.spec) or not (plan.is_of_paper or run.spec.fidelity == "counted")
        }
        early = [run for run in plan.runs if run.group not in late]
        first.append(replace(plan, runs=tuple(early)))
        then.append(replace(plan, runs=tuple(run for run in plan.runs if run.group in late)))
    first.sort(key=lambda plan: (not plan.is_of_paper, plan.experiment.minutes.get(plan.scale, 0)))
    return [part for part in (*first, *then) if part.outstanding]


def _is_late(spec: RunSpec) -> bool:
    return spec.task == "learn" or (spec.timed and spec.fidelity == "measured")


def prepare(plan: Plan) -> None:
    """Remove leftovers of kills in the plan's folder, and record its runs and statuses."""
    journal = plan.journal
    journal.remove_leftovers()
    journal.plan(plan.experiment, plan.machine, plan.command, accumulate=plan.accumulate)
    skipped = {run.id: Status("skipped", run.reason) for run in plan.runs if run.reason}
    done = {run.id: Status("done") for run in plan.runs if run.status == "done"}
    journal.set_status(skipped | done)


@dataclass
class GroupRun:
    """The new rounds of one group of a plan."""

    plan: Plan
    group: str
    crew: Crew
    reporter: ProgressReporter
    show_done: ShowDone
    _open: dict[str, PlannedRun] = field(default_factory=dict)  # runs that still miss a round
    _replaced: set[str] = field(default_factory=set)  # whose first new round replaces the old ones
    _failed: set[str] = field(default_factory=set)
    _cuts: TimedCuts = field(default_factory=TimedCuts)

    def measure(self) -> None:
        """Measure and record one round after the other; later rounds leave out runs that failed."""
        journal, planned = self.plan.journal, self.plan.fresh_rounds(self.group)
        self._open = {run.id: run for members in planned for run in members}
        if self.plan.force:
            self._replaced = {run.id for run in self._open.values() if not run.added}
        for run in self._open.values():
            earlier = journal.rounds_of(run.id)
            if earlier and run.id not in self._replaced:
                self._cuts.add(run.spec, earlier[-1].records[run.id]["balance"])
        # A baseline that only accompanies other runs stays done, whatever becomes of it here.
        self._mark(Status("running"))
        try:
            for number, members in enumerate(planned, start=1):
                if all(run.id in self._failed for run in members):
                    return
                self.reporter.round(self.plan, self.group, number, len(planned))
                for part in self._parts(members):
                    self._round(number, part)
        except (KeyboardInterrupt, Exception) as stop:
            with suppress(Exception):  # no second error may hide the first
                by_user = isinstance(stop, KeyboardInterrupt)
                reason = getattr(stop, "strerror", None) or type(stop).__name__
                self._mark(Status("interrupted", "stopped by the user" if by_user else reason))
            raise

    def _parts(self, members: list[PlannedRun]) -> list[list[PlannedRun]]:
        """The runs of a round in parts, each of which is recorded as soon as it is there.

        Runs that are divided by each other stay together. Fits and trainings to a quality are not.
        """
        if members[0].spec.task not in ("fit", "learn"):
            return [members]
        if all(map(self._is_apart, members)):
            return self._beside(members)
        return [[run] for run in members]

    def _beside(self, runs: list[PlannedRun]) -> list[list[PlannedRun]]:
        """Runs that take one core each, as many side by side as there are cores."""
        cores = self.plan.machine.count
        return [runs[start : start + cores] for start in range(0, len(runs), cores)]

    def _mark(self, status: Status) -> None:
        missing = [name for name, run in self._open.items() if run.missing]
        self.plan.journal.set_status(dict.fromkeys(missing, status))

    def _round(self, number: int, members: list[PlannedRun]) -> None:
        started, watch, journal = _now(), CpuShare(), self.plan.journal
        for run in (run for run in members if run.id in self._failed):
            self.reporter.left_out(run)
        runs = [run for run in members if run.id not in self._failed]
        outcomes: dict[str, Outcome] = {}
        timed = [run for run in runs if run.spec.timed and run.spec.task == "train"]
        for beside in self._beside([run for run in runs if self._is_apart(run)]):
            outcomes |= self._at_once(beside, {run.id: self._job(run) for run in beside})
        for run in (run for run in runs if run not in timed and run.id not in outcomes):
            outcomes[run.id] = self._alone(run, self._job(run))
        together = self._together(timed, outcomes)
        measured: dict[str, Measured] = {}
        for run in runs:
            outcome = outcomes[run.id]
            if outcome.measured is not None:
                measured[run.id] = outcome.measured
                continue
            self._failed.add(run.id)
            self._open.pop(run.id, None)
            if run.missing:
                journal.set_status({run.id: Status(outcome.status, outcome.reason)})
        if not measured:
            return
        measured = with_predictions({run.id: run.spec for run in members}, measured)
        load = watch.share()
        if any(run.spec.fidelity in TIMED for run in members):
            self.reporter.load(load)
        # A baseline that only accompanies other runs has its rounds already.
        still = [run for run in members if run.id in measured and run.id in self._open]
        done = [run for run in still if run.missing <= number]
        journal.commit(
            self.group,
            measured,
            self.plan.machine,
            (started, _now()),
            load,
            together=[name for name in together if name in measured],
            done=[run.id for run in done],
            replacing=sorted(self._replaced & measured.keys()),
        )
        self._replaced -= measured.keys()
        for run in done:
            del self._open[run.id]
        fresh = {run.id for run in done if run.missing}
        if fresh:
            self.show_done(self.plan, [run for run in self.plan.runs if run.id in fresh])

    def _together(self, runs: list[PlannedRun], outcomes: dict[str, Outcome]) -> list[str]:
        """Measure runs step against step, as far as memory allows, and the others in turn.

        Adds an outcome for each; returns the ids of those that were measured step against step.
        """
        jobs: dict[str, Job] = {}
        for run in runs:
            job: Job | Outcome = self._job(run)
            if run.spec.modelled:
                job = prepare_emulation(self.crew.measure, job, self._deadline)
            if isinstance(job, Outcome):
                outcomes[run.id] = self._told(run, job, 0.0)
            else:
                jobs[run.id] = job
        # A library that takes all processes has no use for those of a wider run.
        widest = max((job.spec.devices for job in jobs.values()), default=0)
        beside = [
            run
            for run in runs
            if run.id in jobs
            and (run.spec.library not in WHOLE_WORLD or run.spec.devices == widest)
        ]
        found: dict[str, Outcome] = {}
        while beside:
            found = self._at_once(beside, jobs)
            outcomes |= found
            if not found or len(found) == len(beside):
                break
            beside = [run for run in beside if run.id not in found]  # begin anew without it
        for run in runs:
            if run.id not in outcomes:
                outcomes[run.id] = self._alone(run, jobs[run.id])
        return [*found]

    def _at_once(self, runs: list[PlannedRun], jobs: Mapping[str, Job]) -> dict[str, Outcome]:
        """The outcomes of runs that are measured step against step or, if apart, side by side.

        Where one failed, it is that one's alone, and none where the memory does not hold all runs.
        """
        signals.check()
        number = {run.id: n for n, run in enumerate(runs)}
        asked = tuple(
            replace(jobs[run.id], bases=tuple(number[b] for b in run.bases if b in number))
            for run in runs
        )
        apart = asked[0].apart
        self.reporter.note(f"{len(runs)} runs, {'side by side' if apart else 'step against step'}")
        began, deadline = time.monotonic(), self._deadline * (1 if apart else len(runs))
        found = self.crew.measure_all(asked, deadline, fresh=not apart)
        crowded = len(runs) > 1 and any(outcome.status == "oom" for outcome in found.values())
        if crowded and not apart:
            return {}
        seconds = (time.monotonic() - began) / len(runs)
        return {runs[n].id: self._told(runs[n], each, seconds) for n, each in found.items()}

    def _alone(self, run: PlannedRun, job: Job) -> Outcome:
        signals.check()
        self.reporter.note(run.named)
        began = time.monotonic()
        if run.spec.task == "fit" and run.spec.fidelity == "measured":
            search = Search(self.crew.measure, job, self._deadline, self.reporter.note)
            outcome = search.outcome()
        else:
            outcome = self.crew.measure(job, self._deadline)
        return self._told(run, outcome, time.monotonic() - began)

    @property
    def _deadline(self) -> float:
        return DEADLINES[self.plan.scale]

    def _told(self, run: PlannedRun, outcome: Outcome, seconds: float) -> Outcome:
        if outcome.measured is not None:
            self._cuts.add(run.spec, outcome.measured.record.balance)
        self.reporter.measured(run, outcome, seconds)
        return outcome

    def _job(self, run: PlannedRun) -> Job:
        spec, machine = run.spec, self.plan.machine
        earlier = [] if run.id in self._replaced else self.plan.journal.rounds_of(run.id)
        # Layers that wait keep nothing.
        read = spec.fidelity != "emulated" and not any(
            event.records[run.id].get("peak_bytes") for event in earlier
        )
        device = "cpu" if spec.modelled or spec.fidelity == "counted" else machine.device
        order = len(self.plan.journal.rounds)
        return Job(spec, self._cuts.of(spec), read, device, order)

    def _is_apart(self, run: PlannedRun) -> bool:
        return takes_one_core(run.spec, self.plan.machine.device)


def workers(plans: Sequence[Plan], results: Path) -> Crew:
    machine = plans[0].machine
    if torchrun_rank() is not None:
        return Crew(team=torchrun())
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    logs = results / machine.slug / plans[0].scale / "logs"
    refuse_links(results, logs)
    return Crew(logs / name, 0 if machine.device == "cpu" else machine.count)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
