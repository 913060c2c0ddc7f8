"""What the terminal shows of a plan's progress during `repro run`."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from repro.harness.plan import Plan, PlannedRun
from repro.harness.request import Status
from repro.harness.text import duration
from repro.io.called import as_called
from repro.io.redact import redact
from repro.io.untrusted import short


class ProgressReporter:
    """Shows what happens during `repro run`; what a user need not act on goes into a file, the log.

    On a terminal the last line shows what runs, how much is measured and the time left. It is
    drawn once a second, because drawing takes time from the cores that are being measured. Without
    a terminal it is printed when something new runs, at most once a minute.
    """

    def __init__(self, log_file: Path, console: Console | None = None) -> None:
        self.log_file = log_file
        self.console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self.failed: list[str] = []  # ids of runs, and what became of them
        self._measured = self._planned = 0  # runs of rounds
        self._round = ""
        self._last_line = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            console=self.console,
            refresh_per_second=1,
            transient=True,
            disable=not self.console.file.isatty(),  # FORCE_COLOR makes no terminal of a pipe
        )
        self._task = self._progress.add_task("", total=None, state="")

    def say(self, text: str | Text = "") -> None:
        self._last_line = time.monotonic()
        self.console.print(as_called(text) if isinstance(text, str) else text)

    def warn(self, text: str) -> None:
        self.say(Text(f"warning: {text}", style="bold yellow"))

    def log(self, text: str) -> None:
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {redact(text)}\n")

    def begin(self, plans: Sequence[Plan]) -> None:
        """Start the live line; workers start after this."""
        outstanding = [run for plan in plans for run in plan.outstanding]
        self._planned = len(outstanding)
        self._progress.reset(self._task, total=sum(map(_share, outstanding)))
        self._show("starting worker processes")
        self._progress.start()

    def end(self) -> None:
        self._progress.stop()

    def round(self, plan: Plan, group: str, number: int, total: int) -> None:
        self._round = f"{plan.experiment.name}/{group}, round {number} of {total}"

    def note(self, text: str) -> None:
        """Show what is measured, and log when it began."""
        activity = f"{self._round}: {short(text, 60, quote=False)}"
        self.log(activity)
        self._show(activity)

    def fail(self, run: PlannedRun, status: Status, logs: Path | None) -> None:
        """Show why a run has no result; `logs` is the folder of its workers' output."""
        self.advance(run)
        self.failed.append(f"{run.id} ({status.word})")
        self.say(Text(f"{run.named}: {status.word} ({status.reason})", style="bold red"))
        self.log(f"{run.named}: {status.reason}; output of its workers: {logs or '-'}")

    def advance(self, run: PlannedRun) -> None:
        """Count a run of a round, also one that was left out."""
        self._measured += 1
        self._progress.update(self._task, advance=_share(run))
        self._progress.update(self._task, state=self._state())

    def _show(self, activity: str) -> None:
        self._progress.update(self._task, description=activity, state=self._state())
        if self._progress.disable and time.monotonic() - self._last_line >= 60:
            self.say(f"{activity}; {self._state()}")

    def _state(self) -> str:
        """`12 of 340 measured, about 4 min left`; no time before the first, or after the last."""
        (task,) = self._progress.tasks
        left = ""
        if task.completed and task.remaining and task.elapsed:
            seconds = task.elapsed * task.remaining / task.completed
            left = f", about {duration(seconds)} left"
        return f"{self._measured} of {self._planned} measured{left}"


def _share(run: PlannedRun) -> float:
    """Of the progress: its seconds as estimated, or 1 where all runs have no estimate."""
    return run.seconds or 1.0


def summary(plans: Sequence[Plan]) -> str:
    """How many runs are planned, done and skipped, and about how long the rest takes."""
    runs = [run for plan in plans for run in plan.runs]
    count, first = Counter(run.status.word for run in runs), plans[0]
    parts = [f"{len(runs)} runs at scale {first.scale} on {first.machine.slug}"]
    if added := sum(run.added for run in runs):
        parts.append(f"{added} added, because ratios are divided by them")
    parts.append(f"{count['done']} done")
    parts += _skipped(runs)
    if count["planned"]:
        seconds = sum(plan.seconds for plan in plans)
        about = f", about {duration(seconds)}" if seconds else ""
        parts.append(f"{count['planned']} to measure{about}")
    return "; ".join(parts)


def counted(runs: Sequence[PlannedRun], done: int) -> str:
    """How many of the runs that this machine can measure are done, and what the others need."""
    measurable = sum(not run.obstacle for run in runs)
    return "; ".join([f"{done} of {measurable} runs are done", *_skipped(runs)])


def _skipped(runs: Sequence[PlannedRun]) -> list[str]:
    reasons = Counter(run.obstacle for run in runs if run.obstacle)
    listed = ", ".join(f"{number} x {reason}" for reason, number in reasons.items())
    return [f"{reasons.total()} skipped ({listed})"] if reasons else []
