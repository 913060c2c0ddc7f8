"""Measure what plans leave open. Rounds of a group are interleaved, and recorded one by one."""

import os
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from repro.harness import pools, rehearsal, wandb_mirror, wandb_summary
from repro.harness.closing import closing
from repro.harness.contention import Watch
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, PlannedRun
from repro.harness.progress import ProgressReporter
from repro.harness.record import REMEDY, Folder
from repro.harness.results import Place, load
from repro.harness.schema import TrainRound
from repro.harness.spec import TIMED, Scale, run_name
from repro.harness.tasks import fit_search
from repro.harness.tasks.emulate import emulate
from repro.harness.vary import same_cut
from repro.harness.workers import Crews, Workers
from repro.io import lock, signals
from repro.io.files import check_inside, remove_leftovers

REPORT_PAUSE = 60.0  # seconds between two reports while experiments are measured
# seconds for one run
DEADLINES: dict[Scale, float] = {
    "smoke": 180,
    "gpu-dry": 180,
    "laptop": 600,
    "gpu": 480,
    "node": 1800,
    "paper": 7200,
}


@dataclass
class Session:
    """One `repro run`.

    Attributes:
        results: the folder that is recorded into.
        wandb: whether and how W&B mirrors the runs.
        reporter: reports progress to the user.
        picture: draws a timeline for W&B; None: W&B gets no pictures.
        command: what the user typed.
        allow_nonfinite: record a run whose loss is inf or nan, with null in its place, instead of
            failing it.
        failed: ids of the runs that failed.
        address: of the W&B project, when online.
        rewrite_report: writes the report of what is recorded so far and returns its page; it is
            called after an experiment, at most once in `REPORT_PAUSE` seconds.
    """

    results: Path
    wandb: wandb_mirror.Mode
    reporter: ProgressReporter
    picture: wandb_mirror.Picture | None = None
    command: str = "repro run"
    allow_nonfinite: bool = False
    failed: list[str] = field(default_factory=list)
    address: str | None = None
    rewrite_report: Callable[[], Path] | None = None
    _watch: Watch = field(default_factory=Watch)  # until the first round begins
    _reported: float = 0.0  # when the report was written last, on the monotonic clock
    _before: list[tuple[Folder, set[str]]] = field(default_factory=list)  # rounds at the start

    @property
    def rounds(self) -> int:
        """How many were recorded since the start; counted on disk, as a stop may come any time."""
        return sum(len(folder.finished() - before) for folder, before in self._before)

    def execute(self, plan: Callable[[], Sequence[Plan]]) -> int:
        """Measure the runs that `plan` gives; 0 when all are done or skipped, else 1.

        `plan` is called twice: so mistakes are reported before anything is written, and once this
        process has the lock, because another one may have recorded runs meanwhile.

        Raises:
            KeyboardInterrupt: after the interruption is recorded.
        """
        rehearsal.check_plans(plan())
        with lock.held(self.results, self.command):
            return self._execute(plan())

    def _execute(self, plans: Sequence[Plan]) -> int:
        self._before = [(plan.folder, plan.folder.finished()) for plan in plans]
        for plan in plans:
            self.reporter.plan(plan)
            prepare_folder(plan)
        todo = [plan for plan in plans if plan.open]
        if not todo:
            self._close(plans)
            self.reporter.say("\nnothing left to measure (--force measures again)")
            return 0
        with workers(todo, self.results) as crew:
            runs = [run for plan in todo for run in plan.runs]
            if any(run.missing and run.spec.fidelity in TIMED for run in runs):
                self.reporter.load(self._watch.share())
            self.reporter.begin(todo)
            try:
                crew.ready()
                self.reporter.started()
                for plan in todo:
                    recorded = self.rounds
                    for group in plan.experiment.groups:
                        self._group(plan, group.name, crew)
                    if self.rounds > recorded:
                        self._mirror(plan)
                    # The whole report is written once all workers have ended.
                    if plan is not todo[-1]:
                        self._rewrite_report()
            finally:
                self.reporter.end()
        self._close(plans)
        return 1 if self.failed else 0

    def _rewrite_report(self) -> None:
        """Let the user open a report of what there is so far; drawing takes a few seconds."""
        if self.rewrite_report is None or time.monotonic() < self._reported + REPORT_PAUSE:
            return
        try:
            self.reporter.say(f"\nreport so far: {self.rewrite_report()}")
        except Exception as error:  # measuring goes on without it
            self.reporter.warn(f"no report yet: {type(error).__name__}: {error}")
        self._reported = time.monotonic()

    def _close(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            self.reporter.closing(closing(plan))

    def _group(self, plan: Plan, group: str, crew: Measurer) -> None:
        measuring = GroupRun(plan, group, crew, self.reporter, self.allow_nonfinite)
        try:
            for _ in measuring.rounds():
                self._publish(plan, measuring.done)
                measuring.done.clear()
        except (KeyboardInterrupt, OSError) as stop:
            with suppress(Exception):  # no second error may hide the first
                measuring.interrupted(
                    str(stop.strerror) if isinstance(stop, OSError) else "stopped by the user"
                )
                self._publish(plan, measuring.done)
            raise
        self.failed += measuring.failed

    def _publish(self, plan: Plan, runs: list[PlannedRun]) -> None:
        """Report, and mirror to W&B, the runs of a group that have all their rounds now."""
        if not runs:
            return
        results = load(plan.folder.path, plan.folder.files.root)
        recorded = {run.id: run for run in results.runs}
        # One picture stands for the group: of the widest run whose step is recorded.
        pictured = max(
            (run for run in runs if run.spec.trace),
            key=lambda run: (run.spec.K, run.spec.M),
            default=None,
        )
        for run in sorted(runs, key=plan.runs.index):
            result = recorded[run.id]
            timeline = results.timeline(result)
            self.reporter.result(
                result, results.speedup(result, K=1), timeline, draw=run is pictured
            )
            records = [round_.record for round_ in result.rounds]
            losses = [record.loss for record in records if isinstance(record, TrainRound)]
            if any(loss is None for round_losses in losses for loss in round_losses):
                self.reporter.warn(f"{run.id}: loss is not finite")
            # Simulated and counted runs are lines of one table, see `_mirror`.
            if run.spec.fidelity not in TIMED:
                continue
            found = wandb_mirror.log_run(
                self.wandb,
                plan.experiment.name,
                run_name(run.id, result.differs_in),
                run.spec.plain(),
                results.row(result),
                records,
                timeline,
                self.results,
                _tags(plan),
                self.picture,
            )
            self.address = found or self.address

    def _mirror(self, plan: Plan) -> None:
        """Mirror to W&B what the whole experiment shows."""
        if self.wandb == "disabled":
            return
        results = load(plan.folder.path, plan.folder.files.root)
        place = Place(*plan.folder.path.parts[-3:])
        found = wandb_summary.log_experiment(self.wandb, results, place, self.results, _tags(plan))
        self.address = found or self.address


@dataclass
class GroupRun:
    """The new rounds of one group of a plan."""

    plan: Plan
    group: str
    crew: Measurer
    reporter: ProgressReporter
    allow_nonfinite: bool = False
    failed: list[str] = field(default_factory=list)
    done: list[PlannedRun] = field(default_factory=list)
    _cuts: dict[Hashable, tuple[int, ...]] = field(default_factory=dict)  # `vary.same_cut` -> cut
    _old: dict[str, list[str]] = field(default_factory=dict)
    _open: dict[str, PlannedRun] = field(default_factory=dict)

    def rounds(self) -> Iterator[None]:
        """Measure and record one round after the other; later rounds leave out runs that failed."""
        planned = self.plan.fresh_rounds(self.group)
        self._open = {run.id: run for members in planned for run in members}
        for run in self._open.values():
            self._recall(run)
        for number, members in enumerate(planned, start=1):
            if all(run.id in self.failed for run in members):
                return
            self.reporter.round(self.plan, self.group, number, len(planned))
            # Every other round runs backwards, so that a slow drift of the machine favours no run.
            members = members if number % 2 else members[::-1]
            # Fits are not divided by each other, so each is recorded as soon as it is there.
            is_fit = members[0].spec.task == "fit"
            for part in [[run] for run in members] if is_fit else [members]:
                self._round(number, part)
                yield

    def interrupted(self, reason: str) -> None:
        """Set the status of every run that still misses a round."""
        for run in self._open.values():
            self._status(run, "interrupted", reason)

    def _recall(self, run: PlannedRun) -> None:
        """Read from earlier rounds of a run its cut, to use it again, and what --force replaces."""
        if self.plan.force and not run.added:
            self._old[run.id] = list(self.plan.folder.rounds(run.id))
        elif run.spec.balance == "time" and (records := self.plan.folder.records(run.id)):
            self._cuts[same_cut(run.spec)] = tuple(records[-1].balance)
        self._status(run, "running")

    def _round(self, number: int, members: list[PlannedRun]) -> None:
        started, watch = _now(), Watch()
        measured: dict[str, Measured] = {}
        for run in members:
            if run.id in self.failed:
                self.reporter.dropped(run)
                continue
            outcome = self._measure(run)
            if outcome.measured is not None:
                measured[run.id] = outcome.measured
                self._cuts[same_cut(run.spec)] = tuple(outcome.measured.record.balance)
            else:
                self.failed.append(run.id)
                self._open.pop(run.id, None)
                if run.missing:  # a baseline that only accompanies other runs stays done
                    self._status(run, outcome.status, outcome.reason)
        if not measured:
            return
        load = watch.share()
        if any(run.spec.fidelity in TIMED for run in members):
            self.reporter.load(load)
        self.plan.folder.commit_round(
            self.group, measured, self.plan.machine, (started, _now()), load
        )
        for run in members:
            if run.id in measured:
                self._after(run, last=run.missing <= number)

    def _measure(self, run: PlannedRun) -> Outcome:
        signals.check()
        self.reporter.run(run)
        known = run.id not in self._old and any(
            record.peak_bytes for record in self.plan.folder.records(run.id)
        )
        cut = self._cuts.get(same_cut(run.spec)) if run.spec.balance == "time" else None
        device = (
            "cpu"
            if run.spec.modelled or run.spec.fidelity == "counted"
            else self.plan.machine.device
        )
        job = Job(run.spec, cut, not known, device, self.allow_nonfinite)
        self.crew.ready()
        began = time.monotonic()
        outcome = self._once(job, DEADLINES[self.plan.scale])
        self.reporter.measured(run, outcome, time.monotonic() - began)
        return outcome

    def _once(self, job: Job, deadline: float) -> Outcome:
        if job.spec.task == "fit" and job.spec.fidelity == "measured":
            return fit_search.search(
                self.crew, job, deadline, lambda text: self.reporter.say(f"  {text}")
            )
        if job.spec.fidelity == "emulated" and job.spec.modelled:
            return emulate(self.crew, job, deadline)
        return self.crew.measure(job, deadline)

    def _after(self, run: PlannedRun, *, last: bool) -> None:
        """Bring the status of a run up to date, after a round of it was recorded."""
        if old := self._old.pop(run.id, []):
            self.plan.folder.forget(run.id, old)
        if not last:
            self._status(run, "running")
        elif run.id in self._open:
            self._open.pop(run.id)
            self._status(run, "done")
            # A baseline that only accompanied other runs was reported when it was done.
            if run.missing:
                self.done.append(run)

    def _status(self, run: PlannedRun, status: str, reason: str = "") -> None:
        self.plan.folder.set_status(run.id, status, reason, len(self.plan.folder.rounds(run.id)))


def _tags(plan: Plan) -> tuple[str, ...]:
    """By which a user finds the W&B runs of an experiment."""
    return plan.experiment.paper, plan.scale, plan.machine.slug


def prepare_folder(plan: Plan) -> None:
    """Discard leftovers of kills in the plan's folder, and write its specs and statuses."""
    experiment, identity = plan.experiment, plan.machine.identity
    runs = {
        run.run_id(experiment.version, identity): (group.name, run)
        for group in experiment.groups
        for run in group.runs
    }
    remove_leftovers(plan.folder.path.parents[1])
    for run in plan.runs:
        if plan.force and not run.added and run.status != "skipped":
            try:
                plan.folder.records(run.id)
            except ValueError as error:
                reason = str(error).removesuffix(f"; {REMEDY}")
                warnings.warn(f"given up, as --force says: {reason}", stacklevel=1)
                plan.folder.forget(run.id, plan.folder.rounds(run.id))
    plan.folder.write_specs(
        experiment, runs, identity, accumulate=plan.accumulate, command=plan.command
    )
    for run in plan.runs:
        if run.status == "skipped":
            plan.folder.set_status(run.id, "skipped", run.reason)
        elif run.status == "done":  # a kill may have come between its last round and this
            plan.folder.set_status(run.id, "done", rounds=len(plan.folder.rounds(run.id)))


def workers(plans: Sequence[Plan], results: Path) -> Crews | Workers:
    """As many workers as the runs need, on this host or under torchrun."""
    machine = plans[0].machine
    if torchrun_rank() is not None:
        return Workers(pools.torchrun())
    widest = max(run.spec.devices for plan in plans for run in plan.runs if run.missing)
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    logs = results / machine.slug / plans[0].scale / "logs"
    check_inside(logs, results)

    def start(count: int) -> Workers:
        return Workers(pools.Local(count, logs / (name if count == widest else f"{name}-{count}")))

    return Crews(start, widest, 0 if machine.device == "cpu" else machine.count)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
