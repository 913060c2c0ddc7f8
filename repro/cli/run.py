"""`repro run`: measures the missing runs."""

import dataclasses
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from repro.cli.plan import PlanOptions, choose
from repro.gpipe.runtime.group import torchrun
from repro.harness import closing, crew, rehearsal, runner
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, PlannedRun, price
from repro.harness.progress import ProgressReporter, summary
from repro.harness.results import of_journals
from repro.harness.spec import TIMED
from repro.harness.terminal import show
from repro.harness.wandb import Mode, default_mode, log_experiment, log_run
from repro.io import lock, signals
from repro.io.untrusted import refuse_linked_files, refuse_links, short

REPORT_PAUSE = 60.0  # seconds between two reports while experiments are measured


@dataclasses.dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Measure and record the missing runs. After a stop, the same command goes on."""

    wandb: Mode = dataclasses.field(default_factory=default_mode)
    """Weights & Biases; results never depend on it"""
    wandb_project: str = ""
    """its project; by default WANDB_PROJECT or gpipe-repro"""
    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """confirm the cost of scale paper"""
    allow_nonfinite: tyro.conf.FlagCreatePairsOff[bool] = False
    """record runs whose loss or gradients are inf or nan; by default such a run fails"""
    plots: Path | None = None
    """rewrite the report in this folder after each experiment"""


def main(arguments: list[str]) -> int:
    """Measure; under torchrun rank 0 plans and records, and every other rank runs its worker."""
    if torchrun_rank() is None:
        return _measure(arguments)
    team = torchrun()
    if team.rank:
        team.serve(crew.work)
        return 0
    try:
        return _measure(arguments)
    finally:
        team.dismiss()


def _measure(arguments: list[str]) -> int:
    request = choose(RunOptions, "run", arguments)
    options = request.options
    if request.scale == "paper" and not options.yes:
        raise ValueError(price(request.plans()))
    if options.wandb_project:
        os.environ["WANDB_PROJECT"] = options.wandb_project
    session = Session(options, ProgressReporter())
    command = shlex.join(["repro", "run", *arguments])
    try:
        code = session.run(request.plans, command)
    except BaseException as stop:
        # An import that is interrupted may turn the KeyboardInterrupt into an error of its own.
        if not isinstance(stop, KeyboardInterrupt) and not signals.was_signalled():
            raise
        kept = "no round was finished"
        if session.rounds:
            kept = f"{session.rounds} finished round{'s are' if session.rounds > 1 else ' is'} kept"
        raise KeyboardInterrupt(kept) from None
    session.say_where()
    return code


@dataclasses.dataclass
class Session:
    """One `repro run`: shows what the runner does on the terminal, in W&B and in the report."""

    options: RunOptions
    reporter: ProgressReporter
    plans: Sequence[Plan] = ()
    rounds: int = 0  # recorded since the start
    address: str | None = None  # of the W&B project, when online
    _reported: float = 0.0  # when the report was written last, on the monotonic clock

    def run(self, make_plans: Callable[[], Sequence[Plan]], command: str = "repro run") -> int:
        """Measure; 0 when all is done, or skipped where the user did not choose the runs, else 1.

        Plans are made under the lock, because another process may have recorded runs before.

        Raises:
            KeyboardInterrupt: after the interruption is recorded.
        """
        results, plots = self.options.results, self.options.plots
        if self.options.wandb != "disabled":
            refuse_links(results, results / "wandb")
        if plots:
            refuse_linked_files(plots)
        with lock.held(results, command):
            self.plans = plans = make_plans()
            rehearsal.check_plans(plans)
            before = [len(plan.journal.rounds) for plan in plans]
            self.reporter.say(summary(plans))
            for plan in plans:
                if not plan.outstanding:
                    self._answer(plan)
            if not any(plan.outstanding for plan in plans):
                self.reporter.say("nothing is left to measure (--force measures again)")
            try:
                runner.measure(
                    plans,
                    results,
                    self.reporter,
                    self._show_done,
                    self._show_experiment,
                    allow_nonfinite=self.options.allow_nonfinite,
                )
            finally:
                self.reporter.end()
                self.rounds = sum(len(plan.journal.rounds) for plan in plans) - sum(before)
            # Tables are printed when no live line is below them.
            for plan in plans:
                if not plan.experiment.minutes:
                    show(["", *closing.table(*closing.recorded(plan))], self.reporter.console.file)
        return 1 if self.refused or self.reporter.failed else 0

    @property
    def refused(self) -> list[PlannedRun]:
        """Skipped runs that the user chose; of an exhibit's runs some are too wide for most."""
        chosen = [run for plan in self.plans if plan.accumulate for run in plan.runs]
        return [run for run in chosen if run.status == "skipped" and not run.added]

    def say_where(self) -> None:
        """Print where everything is and, last, whether all passed."""
        options, say = self.options, self.reporter.say
        folder = options.results
        page = f"`repro report --results {folder}` writes the page"
        if options.plots:
            try:
                page = f"page: {rewrite(folder, options.plots)}"
            except ValueError as error:  # nothing was recorded
                page = f"no page: {error}"
        say(f"\nresults: {folder}; `repro report --results {folder} --runs` lists the runs")
        mirrored = folder / "wandb"
        if self.address:
            say(f"W&B: {self.address}; `repro report --wandb --push` makes a workspace there")
        elif options.wandb != "disabled" and any(mirrored.glob("offline-run-*")):
            say(
                f"W&B: offline, in {mirrored}; look with `.venv/bin/wandb leet {mirrored}`, send "
                f"with `.venv/bin/wandb sync {mirrored}`"
            )
        failed, runs = self.reporter.failed, [run for plan in self.plans for run in plan.runs]
        wanted = [run for run in runs if run.status != "skipped"]
        parts = [f"{len(wanted) - len(failed)} of {len(wanted)} runs are done"]
        if failed:
            ids = short(", ".join(failed), 300, quote=False)
            parts.append(f"not measured: {ids}; the same command measures only these")
        if self.refused:
            reasons = ", ".join(dict.fromkeys(run.reason for run in self.refused))
            parts.append(f"{len(self.refused)} skipped ({reasons}), see `repro predict`")
        passed = "failed" if failed or self.refused else "passed"
        say(f"{passed}: {'; '.join(parts)}; {page}")

    def _answer(self, plan: Plan) -> None:
        """Print what an exhibit shows, in one line if others are measured as well.

        Runs of one's own get a table at the end.
        """
        if plan.experiment.minutes:
            lines = closing.lines(plan)
            for line in lines if len(self.plans) == 1 else lines[:1]:
                self.reporter.say(line)

    def _show_done(self, plan: Plan, runs: Sequence[PlannedRun]) -> None:
        results = of_journals([plan.journal])
        recorded = {run.id: run for run in results.runs}
        for planned in runs:
            run = recorded[planned.id]
            if any(loss is None for round_ in run.rounds for loss in round_.losses):
                self.reporter.warn(f"{run.id}: loss is not finite")
            # Simulated and counted runs are lines of one table, see `_show_experiment`.
            if run.fidelity in TIMED and self.options.wandb != "disabled":
                self._mirror(log_run, results, run, self.options.results)

    def _show_experiment(self, plan: Plan, rounds: int, last: bool) -> None:
        self._answer(plan)
        options = self.options
        if rounds and options.wandb != "disabled":
            results, place = of_journals([plan.journal]), plan.journal.place
            self._mirror(log_experiment, results, place, options.results)
        # A report of what there is so far; the whole one is written once all workers have ended.
        due = time.monotonic() >= self._reported + REPORT_PAUSE
        if options.plots and due and not last:
            try:
                rewrite(options.results, options.plots)
            except Exception as error:  # measuring goes on without it
                self.reporter.warn(f"no report yet: {type(error).__name__}: {error}")
            self._reported = time.monotonic()

    def _mirror(self, log: Callable[..., str | None], *what: Any) -> None:
        self.address = log(self.options.wandb, *what) or self.address


def rewrite(results: Path, plots: Path) -> Path:
    from repro.report import page  # matplotlib takes a second to load

    return page.write(results, plots)
