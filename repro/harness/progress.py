"""What the terminal shows while runs are measured: the plan, where we are, a small Gantt, what came out.

On a terminal a live line below the story says what runs, what is done and how much time is left.
Elsewhere a plain line says so when nothing else was printed for half a minute. The live line is
drawn once a second, because drawing takes time from the cores that are being measured.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from math import isnan
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from repro.gpipe.schedule.timeline import Timeline
from repro.harness import contention
from repro.harness.job import Outcome
from repro.harness.machine import cores
from repro.harness.outside import short
from repro.harness.pace import Kind, TimeLeft, start_up
from repro.harness.plan import Plan, PlannedRun
from repro.harness.spec import run_name
from repro.harness.terminal import rate, seconds, show, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.results import Run

COLOURS = {
    "F": "bold blue",
    "R": "bold yellow",
    "B": "bold green",
    "U": "bold white",
    "setup": "dim",
}
LEGEND = "F forward, R recompute, B backward, U update, s set-up, . idle"
_WIDTH = 72


class Story:
    """Tells what happens during `repro run`.

    Args:
        console: where; by default standard output.
        verbose: draw the median step of every run, instead of one in each group.
        quiet_s: seconds without a line after which a plain one says what runs, where there is no
            terminal.
    """

    def __init__(
        self, console: Console | None = None, *, verbose: bool = False, quiet_s: float = 30.0
    ) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self.verbose = verbose
        self._left = TimeLeft([], {}, 0.0)
        self._experiment = ""
        self._doing = ""
        self._since = time.monotonic()  # when `_doing` began
        self._said = time.monotonic()  # when a line was printed last
        self._said_busy = False
        self._drawn: set[tuple[str, str]] = set()  # groups with a picture of a step
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        live = self.console.is_terminal
        self._progress = Progress(
            *columns, console=self.console, refresh_per_second=1, transient=True, disable=not live
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._quiet_s = quiet_s
        self._ended = threading.Event()

    def say(self, text: str | Text = "") -> None:
        """One line of the story."""
        self._said = time.monotonic()
        self.console.print(text)

    def warn(self, text: str) -> None:
        """One line that must not be missed."""
        self.say(Text(f"  warning: {text}", style="bold yellow"))

    def load(self, share: float | None) -> None:
        """One line, once, when other processes take CPU time; `share` as of `repro.harness.contention.Watch`."""
        if not contention.is_busy(share) or self._said_busy:
            return
        assert share is not None
        self._said_busy = True
        self.warn(
            f"this machine is busy: {contention.in_words(share)}, so steps take longer and differ "
            "more; end them, or measure again later with --force"
        )

    def plan(self, plan: Plan) -> None:
        """What is about to be measured for one experiment."""
        self.say(Text.assemble((f"\n{plan.experiment.name}", "bold"), f": {plan.experiment.title}"))
        self.say(f"  {summary(plan)}")
        for note in plan.notes:
            self.say(f"  {note}")

    def begin(self, plans: Sequence[Plan]) -> None:
        """Workers are about to be started: say what all of it will take, and start the live line."""
        outstanding = [place for plan in plans for place in plan.outstanding]
        pace = {kind: seconds for plan in plans for kind, seconds in plan.pace.items()}
        workers = max(
            (run.spec.devices for plan in plans for run in plan.runs if run.missing), default=1
        )
        self._left = TimeLeft(outstanding, pace, start_up(workers, cores()))
        about = f", {left}" if (left := self._time_left()) else ""
        self.say(f"\n{len(outstanding)} measurements in all{about}; starting {_workers(workers)}")
        self._do(f"starting {_workers(workers)}")
        self._progress.update(self._task, total=len(outstanding))
        self._progress.start()
        if not self.console.is_terminal:
            threading.Thread(target=self._live, daemon=True, name="progress").start()

    def started(self) -> None:
        """The workers are there."""
        self._left.started()

    def end(self) -> None:
        """Take the live line away."""
        self._ended.set()
        self._progress.stop()

    def round(self, plan: Plan, group: str, number: int, total: int) -> None:
        """A round begins."""
        self._experiment = plan.experiment.name
        left = self._time_left()
        self.say(
            f"[{plan.experiment.name}/{group}] round {number} of {total}"
            + (f", {left}" if left else "")
        )

    def run(self, run: PlannedRun) -> None:
        """A run begins."""
        self._do(short(f"{self._experiment}: {run.named}", 60, quote=False))

    def measured(self, run: PlannedRun, outcome: Outcome, seconds: float) -> None:
        """A run ended, well or not."""
        self._advance(run, seconds)
        if outcome.status != "done":
            self.say(Text(f"  {run.named}: {outcome.status} ({outcome.reason})", style="bold red"))
            if outcome.log:
                self.say(
                    "  its workers' output, as it was printed, private paths and all: "
                    f"{outcome.log}"
                )

    def closing(self, parts: "Iterable[RenderableType]") -> None:
        """What came out, see `repro.harness.closing`."""
        show(parts, self.console.file)

    def dropped(self, run: PlannedRun) -> None:
        """A run will not be measured in this round, since it failed before."""
        self._advance(run, None)

    def result(
        self,
        run: "Run",
        speedup: tuple[float, float, float],
        timeline: Timeline | None,
        *,
        draw: bool,
    ) -> None:
        """A run has all its rounds: its numbers; with `draw` also a picture of its median step."""
        self.say(Text(result_line(run, speedup), style="bold"))
        group = (self._experiment, run.group)
        wanted = self.verbose or (draw and group not in self._drawn)
        if timeline is None or run.K == 1 or not wanted:
            return
        if not self._drawn:
            self.say(f"    its median step: {LEGEND}")
        self._drawn.add(group)
        self.say(gantt(timeline, min(_WIDTH, self.console.width - 14)))

    def _do(self, what: str) -> None:
        self._doing, self._since = what, time.monotonic()
        self._progress.update(self._task, description=what, left=self._time_left())

    def _advance(self, run: PlannedRun, seconds: float | None) -> None:
        self._left.done(Kind(self._experiment, run.group, run.spec.fidelity), run.id, seconds)
        self._progress.update(self._task, advance=1, left=self._time_left())

    def _live(self) -> None:
        """Where there is no terminal: a line after every while in which nothing was said."""
        while not self._ended.wait(max(0.01, self._quiet_s - (time.monotonic() - self._said))):
            if time.monotonic() - self._said >= self._quiet_s:
                task = self._progress.tasks[self._task]
                left = f", {left}" if (left := self._time_left()) else ""
                since = duration(time.monotonic() - self._since)
                self.say(
                    f"  {self._doing}, for {since}; {task.completed:.0f} of {task.total:.0f} "
                    f"done{left}"
                )

    def _time_left(self) -> str:
        left = self._left.seconds
        return f"about {duration(left)} left" if left else ""


def _workers(count: int) -> str:
    return f"{count} worker process{'es' * (count > 1)}"


def summary(plan: Plan) -> str:
    """How many runs there are, what is done, what is skipped and why, and about how long the rest takes."""
    count = Counter(run.status for run in plan.runs)
    parts = [
        f"{len(plan.runs)} runs at scale {plan.scale} on {plan.machine.slug}",
        f"{count['done']} done",
    ]
    if count["skipped"]:
        reasons = Counter(run.reason for run in plan.runs if run.status == "skipped")
        parts.append(
            f"{count['skipped']} skipped "
            f"({', '.join(f'{n} x {why}' for why, n in reasons.items())})"
        )
    if plan.open:
        rounds = max(len(plan.fresh_rounds(group.name)) for group in plan.experiment.groups)
        about = f", about {duration(plan.seconds)}" if plan.seconds else ""
        parts.append(
            f"{count['planned']} to measure in {rounds} round{'s' if rounds > 1 else ''}{about}"
        )
    return "; ".join(parts)


def plan_table(plan: Plan) -> Table:
    """The runs of a plan, one line each; recompute and fidelity where they are not the same for all."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", no_wrap=True)
    for name in ("K", "M", "N"):
        table.add_column(name, justify="right", no_wrap=True)
    named = {"recompute": "checkpoint", "fidelity": "fidelity"}
    varied = [
        name
        for name, field in named.items()
        if len({getattr(run.spec, field) for run in plan.runs}) > 1
    ]
    different = any(run.differs_in for run in plan.runs)
    for name in (*varied, *(["differs in"] if different else []), "rounds", "status"):
        table.add_column(name, overflow="fold")
    for group in plan.experiment.groups:
        for run in plan.group(group.name):
            spec = run.spec
            rounds = f"{run.have} of {run.wanted}" if run.status != "skipped" else "-"
            label = f"{run.label}, as baseline" if run.added else run.label
            also = [getattr(spec, named[name]) for name in varied] + [run.differs_in] * different
            table.add_row(run.id, str(spec.K), str(spec.M), str(spec.N), *also, rounds, label)
    return table


def result_line(run: "Run", speedup: tuple[float, float, float]) -> str:
    """A run's numbers in one line.

    Such as `transformer-K2-M4-3fa9c1 (d=64): step 512 ms, 62.5 sequences/s, 1.62x [1.58, 1.66]
    over K=1, idle 21%`.

    Args:
        run: with all its rounds.
        speedup: throughput over K=1, with the ends of its interval.
    """
    if run.fit is not None:
        return f"  {run_name(run.id, run.differs_in)}: {_fitted(run)}"
    fidelity = "" if run.fidelity == "measured" else run.fidelity
    name = run_name(run.id, fidelity, run.differs_in)
    if isnan(run.step_s):
        return f"  {name}: done; the report shows what came of it"
    text = f"  {name}: step {seconds(run.step_s)}, {rate(run.throughput, run.unit)}"
    value, low, high = speedup
    if run.K > 1 and not isnan(value):
        interval = "" if isnan(low) else f" [{low:.2f}, {high:.2f}]"
        if low <= 1 <= high:
            interval += " ~ no difference shown"
        text += f", {value:.2f}x{interval} over K=1 at the same N, M and re-materialization"
    if run.K > 1 and not isnan(run.bubble_idle_over_total):
        text += f", idle {run.bubble_idle_over_total:.0%} of K x step"
    return text


def _fitted(run: "Run") -> str:
    if isnan(run.parameters):
        return run.size
    largest = "" if run.size == "as given" else "largest "
    return (
        f"{largest}{run.size}, {run.parameters / 1e6:,.1f} million parameters, "
        f"{size(2**30 * run.peak_gib_max)} on the fullest stage ({run.fidelity})"
    )


def gantt(timeline: Timeline, width: int) -> Text:
    """One line per stage: a letter for what it did in each slice of the step, `.` where it idled."""
    text = Text()
    total = timeline.step_time or 1.0
    for stage in range(timeline.stages):
        text.append(f"    stage {stage} |")
        spans = [span for span in timeline.spans if span.stage == stage]
        for cell in range(width):
            moment = timeline.start + (cell + 0.5) * total / width
            kind = next((s.kind for s in spans if s.start <= moment < s.end), "")
            text.append(kind[:1] or ".", style=COLOURS.get(kind, "dim"))
        text.append("|\n" if stage < timeline.stages - 1 else "|")
    return text


def duration(seconds: float) -> str:
    """`45 s`, `6 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
