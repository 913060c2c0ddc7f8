"""`repro run`: measures the missing runs."""

import dataclasses
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from repro.cli.choice import (
    REFERENCE_PLOTS,
    PlanOptions,
    choose,
    plans_of,
    say_scale,
    scale_of,
    training_price,
)
from repro.gpipe.schedule.timeline import Timeline
from repro.harness import pools, wandb_summary, workers
from repro.harness.machine import torchrun_rank
from repro.harness.plan import Plan, price
from repro.harness.progress import ProgressReporter
from repro.harness.results import load
from repro.harness.runner import Session
from repro.io import signals

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclasses.dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Measure and record the missing runs. After a stop, the same command goes on."""

    wandb: Literal["offline", "online", "disabled"] = "offline"
    """Weights & Biases; results never depend on it"""
    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """confirm the cost of scale paper"""
    allow_nonfinite: tyro.conf.FlagCreatePairsOff[bool] = False
    """record runs whose loss or gradients are inf or nan; by default such a run fails"""
    verbose: tyro.conf.FlagCreatePairsOff[bool] = False
    """draw the median step of every run, not of one per group"""
    plots: Path | None = None
    """rewrite the report in this folder after each experiment"""


def main(arguments: list[str]) -> int:
    """Measure; under torchrun rank 0 plans and records, and every other rank runs its worker."""
    if torchrun_rank() is None:
        return _measure(arguments)
    team = pools.torchrun()
    if team.rank:
        team.serve(workers.work)
        return 0
    try:
        return _measure(arguments)
    finally:
        team.dismiss()


def _measure(arguments: list[str]) -> int:
    options, chosen = choose(RunOptions, "run", arguments)
    say_scale(options)
    if scale_of(options)[0] == "paper" and not options.yes:
        plans = plans_of(options, chosen)
        trainings = training_price(options, plans)
        raise ValueError(price(plans, trainings.one_line if trainings else ""))
    reporter = ProgressReporter(verbose=options.verbose)
    rewrite_report = None
    if options.plots:
        rewrite_report = partial(rewrite, options.folder, options.plots)
    session = Session(
        options.folder,
        options.wandb,
        reporter,
        _picture,
        command=shlex.join(["repro", "run", *arguments]),
        allow_nonfinite=options.allow_nonfinite,
        rewrite_report=rewrite_report,
    )
    try:
        return _record(session, partial(plans_of, options, chosen), options)
    except BaseException as stop:
        # An import that is interrupted may turn the KeyboardInterrupt into an error of its own.
        if not isinstance(stop, KeyboardInterrupt) and not signals.was_signalled():
            raise
        kept = "no round was finished"
        if session.rounds:
            kept = f"{session.rounds} finished round{'s are' if session.rounds > 1 else ' is'} kept"
        raise KeyboardInterrupt(kept) from None


def _record(session: Session, plans: Callable[[], list[Plan]], options: RunOptions) -> int:
    reporter = session.reporter
    code = session.execute(plans)
    address = session.address
    if options.plots:
        page = _up_to_date_report(options.folder, options.plots)
        reporter.say(f"\nreport: {page}")
        if session.rounds:
            address = _mirror_report(options) or address
    reporter.say(f"\nresults: {options.folder}{_report_hint(options)}")
    if where := _where_wandb(options, address):
        reporter.say(f"W&B: {where}")
    if session.failed:
        reporter.say(
            f"failed: {', '.join(session.failed)}; the same command measures them again, and only "
            "them"
        )
    return code


def rewrite(results: Path, plots: Path) -> Path:
    # The report draws, and matplotlib takes a second to load.
    from repro.report import page, stamp

    written = page.write(results, plots)
    stamp.put(results, plots)
    return written


def _up_to_date_report(results: Path, plots: Path) -> Path | str:
    """The page of a report of all results, or why there is none."""
    from repro.report import stamp

    if stamp.is_current(results, plots):
        return plots / "report.html"
    try:
        return rewrite(results, plots)
    except ValueError as error:  # nothing was recorded
        return str(error)


def _mirror_report(options: RunOptions) -> str | None:
    assert options.plots
    experiments = dict.fromkeys(run.experiment for run in load(options.folder).runs)
    return wandb_summary.log_report(options.wandb, options.plots, experiments, options.folder)


def _where_wandb(options: RunOptions, address: str | None) -> str:
    """Where the W&B runs are and how to look at them; empty if there are none."""
    if address:
        return f"{address}; `repro dashboard --push` makes a workspace there"
    folder = options.folder / "wandb"
    if options.wandb == "disabled" or not any(folder.glob("offline-run-*")):
        return ""
    return (
        f"offline, in {folder}; look with `.venv/bin/wandb leet {folder}`, send with "
        f"`.venv/bin/wandb sync {folder}`"
    )


def _picture(timeline: Timeline, title: str, fidelity: str) -> "Image":
    from repro.report.gantt import picture

    return picture(timeline, title, fidelity)


def _report_hint(options: RunOptions) -> str:
    """How to get the report; empty if this command has written it."""
    if options.plots:
        return ""
    if options.reference:
        command, plots = "repro report --reference", REFERENCE_PLOTS
    else:
        command, plots = f"repro report --results {options.folder}", Path("plots")
    return f"; `{command}` puts all tables and figures into {plots / 'report.html'}"
