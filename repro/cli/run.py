"""`repro run`: measures the missing runs."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from repro.cli.plan import PlanOptions, choose
from repro.cli.report import show_verdicts
from repro.gpipe.runtime.group import torchrun
from repro.harness import rehearsal, run_table, runner, workers
from repro.harness.journal import Journal
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, PlannedRun
from repro.harness.progress import ProgressReporter, counted, summary
from repro.harness.results import load, of_journals
from repro.harness.spec import TIMED
from repro.harness.terminal import show
from repro.harness.text import duration
from repro.harness.wandb import Mode, default_mode, log_experiment, log_run
from repro.io import lock, signals
from repro.io.untrusted import message, refuse_linked_files, refuse_links, short

if TYPE_CHECKING:
    from repro.report.page import Page

LOG, PAGE = "run.log", "report.html"  # in the folders of the results and of the plots


@dataclasses.dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Measure and record the missing runs. After a stop, the same command goes on."""

    wandb: Mode = dataclasses.field(default_factory=default_mode)
    """Weights & Biases; results never depend on it"""
    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """confirm the cost of scale paper"""
    plots: Path | None = None
    """write the report into this folder, anew after each experiment"""


def main(arguments: list[str]) -> int:
    """Measure; under torchrun rank 0 plans and records, and every other rank runs its worker."""
    if torchrun_rank() is None:
        return _measure(arguments)
    team = torchrun()
    if team.rank:
        team.serve(workers.serve)
        return 0
    try:
        return _measure(arguments)
    finally:
        team.dismiss()


def _measure(arguments: list[str]) -> int:
    request = choose(RunOptions, "run", arguments)
    options = request.options
    if request.scale == "paper" and not options.yes:
        raise ValueError(
            f"{summary(request.plans())}, and trainings have no estimate; add --yes to start, or "
            "use --scale node"
        )
    session = Session(options, ProgressReporter(options.results / LOG))
    try:
        code = session.run(request.plans)
    except BaseException as stop:
        # An import that is interrupted may turn the KeyboardInterrupt into an error of its own.
        if not isinstance(stop, KeyboardInterrupt) and not signals.was_signalled():
            raise
        kept = "no round was finished"
        if session.rounds:
            kept = f"{session.rounds} finished round{'s are' if session.rounds > 1 else ' is'} kept"
        if options.plots and (options.plots / PAGE).is_file():
            kept += f"; page: {options.plots / PAGE}"
        raise KeyboardInterrupt(kept) from None
    session.say_where()
    return code


@dataclasses.dataclass
class Session:
    """One `repro run`: shows what the runner does on the terminal, in W&B and on the page."""

    options: RunOptions
    reporter: ProgressReporter
    plans: Sequence[Plan] = ()
    rounds: int = 0  # recorded since the start
    address: str | None = None  # of the W&B project, when online
    _page: "Page | None" = None
    _found: Sequence[Journal] = ()  # all in the results folder

    def run(self, make_plans: Callable[[], Sequence[Plan]]) -> int:
        """Measure; 0 when all is done, or skipped where the user did not choose the runs, else 1.

        Plans are made under the lock, because another process may have recorded runs before.

        Raises:
            KeyboardInterrupt: after a signal; finished rounds are recorded.
        """
        results, plots = self.options.results, self.options.plots
        refuse_links(results, self.reporter.log_file)
        if self.options.wandb != "disabled":
            refuse_links(results, results / "wandb")
        if plots:
            refuse_linked_files(plots)
            plots.mkdir(parents=True, exist_ok=True)  # before hours are measured, not after them
        with lock.held(results):
            self.plans = plans = make_plans()
            rehearsal.check_plans(plans)
            before = [len(plan.journal.rounds) for plan in plans]
            self.reporter.say(summary(plans))
            for plan in plans:
                if not plan.outstanding:
                    self._answer(plan)
            if any(plan.outstanding for plan in plans):
                page = f"page: {plots / PAGE}, renewed after each exhibit; " if plots else ""
                self.reporter.say(f"{page}log: {self.reporter.log_file}")
            else:
                self.reporter.say("nothing is left to measure (--force measures again)")
            try:
                runner.measure(plans, results, self.reporter, self._show_done, self._show_part)
            finally:
                self.reporter.end()
                self.rounds = sum(len(plan.journal.rounds) for plan in plans) - sum(before)
            # Tables are printed when no live line is below them.
            for plan in plans:
                if not plan.experiment.minutes:
                    show(["", *run_table.recorded_of(plan)], self.reporter.console.file)
        return 1 if self.refused or self.reporter.failed else 0

    @property
    def refused(self) -> list[PlannedRun]:
        """Skipped runs that the user chose; of an exhibit's runs some are too wide for most."""
        chosen = [run for plan in self.plans if plan.accumulate for run in plan.runs]
        return [run for run in chosen if run.obstacle and not run.added]

    def say_where(self) -> None:
        """Print the verdicts, where the page is and, last, whether all passed."""
        options, failed = self.options, self.reporter.failed
        page = f"`repro report --results {options.results}` writes the page"
        if options.plots:
            written = self._renew(options.plots)
            show_verdicts(written)
            page = f"page: {written.path}"
        mirrored = options.results / "wandb"
        if self.address:
            self.reporter.say(f"W&B: {self.address}; `repro report --wandb` adds a workspace")
        elif options.wandb != "disabled" and any(mirrored.glob("offline-run-*")):
            self.reporter.log(
                f"W&B: offline, in {mirrored}; look with `.venv/bin/wandb leet {mirrored}`, send "
                f"with `.venv/bin/wandb sync {mirrored}`"
            )
        runs = [run for plan in self.plans for run in plan.runs]
        counts = counted(runs, sum(not run.obstacle for run in runs) - len(failed))
        parts = [counts + ", see `repro predict`" * bool(self.refused)]
        if failed:
            ids = short(", ".join(failed), 300, quote=False)
            # A ratio is inside a round, so a baseline is measured again with all its runs.
            again = "the same command measures them and what is compared with them"
            parts.append(f"not measured: {ids}; {again}")
        passed = "failed" if failed or self.refused else "passed"
        self.reporter.say(f"{passed}: {'; '.join(parts)}; {page}")

    def _show_done(self, plan: Plan, runs: Sequence[PlannedRun]) -> None:
        results = of_journals([plan.journal])
        recorded = {run.id: run for run in results.runs}
        for planned in runs:
            run = recorded[planned.id]
            # Simulated and counted runs are lines of one table, see `_show_part`.
            if run.fidelity in TIMED and self.options.wandb != "disabled":
                self._mirror(log_run, results, run, self.options.results)

    def _show_part(self, part: Plan, seconds: float, following: Sequence[Plan]) -> None:
        more = any(each.journal is part.journal for each in following)
        self._answer(part, f" ({duration(seconds)})", "; its other runs follow" * more)
        options = self.options
        if not more and options.wandb != "disabled":
            results, place = of_journals([part.journal]), part.journal.place
            self._mirror(log_experiment, results, place, options.results)
        if options.plots:
            with self._going_on("the page is not renewed"):
                self._renew(options.plots)

    def _answer(self, plan: Plan, took: str = "", then: str = "") -> None:
        """Print an exhibit's verdicts on one line. Runs of one's own get a table at the end."""
        if plan.experiment.minutes:
            name, text = plan.experiment.name, ""
            with self._going_on(f"{name} has no verdict"):
                from repro.report import verdicts  # matplotlib takes a second to load

                text = verdicts.answer(verdicts.claims_of(of_journals([plan.journal]), name))
            done = sum(plan.journal.status(run.id).word == "done" for run in plan.runs)
            text = text or counted(plan.runs, done)
            self.reporter.say(f"{name}{took}: {text}{then}")

    def _renew(self, plots: Path) -> "Page":
        """Write the page of all results that are there now."""
        from repro.report.page import Page

        self._page = self._page or Page(plots)
        self._found = self._found or load(self.options.results).journals
        mine = {plan.journal.place: plan.journal for plan in self.plans}
        self._page.write(of_journals([mine.get(each.place, each) for each in self._found]))
        return self._page

    @contextmanager
    def _going_on(self, without: str) -> Iterator[None]:
        """An error of the report is one line, because it must not stop the measurements."""
        try:
            yield
        except Exception as error:
            self.reporter.log(traceback.format_exc())
            self.reporter.warn(f"{without}: {type(error).__name__}: {message(error)}")

    def _mirror(self, log: Callable[..., str | None], *what: Any) -> None:
        self.address = log(self.options.wandb, *what) or self.address
