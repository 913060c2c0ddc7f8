"""What the terminal shows during `repro run`: plan, progress, a small Gantt chart, results.

On a terminal a live last line shows the current run, what is done and the time left. It is drawn
once a second, because drawing takes time from the cores that are being measured. Without a terminal
a plain line says the same after half a minute of silence.
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from repro.gpipe.schedule.timeline import Timeline
from repro.harness import contention
from repro.harness.closing import BASES, numbers
from repro.harness.job import Outcome
from repro.harness.pace import TimeLeft
from repro.harness.plan import Plan, PlannedRun, setting
from repro.harness.results import Results, Run
from repro.harness.terminal import table_of
from repro.harness.text import duration
from repro.harness.vary import varied
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {
    "F": "bold blue",
    "R": "bold yellow",
    "B": "bold green",
    "I": "bold green",
    "W": "bold magenta",
    "U": "bold white",
    "setup": "dim",
}
LEGEND = (
    "F forward, R recompute, B backward (I of inputs, W of weights), U update, s set-up, . idle"
)
_WIDTH = 72


class ProgressReporter:
    """Prints what happens during `repro run`.

    Without a terminal a line says what runs after `quiet_s` seconds of silence.
    """

    def __init__(self, console: Console | None = None, *, quiet_s: float = 30.0) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self.failed: list[str] = []  # ids of runs, and what became of them
        self._left = TimeLeft([])
        self._experiment = ""
        self._activity = ""
        self._activity_began = self._last_line = time.monotonic()
        self._warned_busy = False
        self._drawn: set[tuple[str, str]] = set()  # (experiment, group) with a picture of a step
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
            refresh_per_second=1,
            transient=True,
            disable=not self.console.file.isatty(),  # FORCE_COLOR makes no terminal of a pipe
        )
        self._task = self._progress.add_task("", total=None, left="")
        self._quiet_s = quiet_s
        self._ended = threading.Event()

    def say(self, text: str | Text = "") -> None:
        self._last_line = time.monotonic()
        self.console.print(text)

    def note(self, text: str) -> None:
        self.say(f"  {text}")

    def warn(self, text: str) -> None:
        self.say(Text(f"  warning: {text}", style="bold yellow"))

    def load(self, share: float | None) -> None:
        text = contention.warning(share)
        if text and not self._warned_busy:
            self._warned_busy = True
            self.warn(f"{text}, or measure again later with --force")

    def plan(self, plan: Plan) -> None:
        self.say(Text.assemble((f"\n{plan.experiment.name}", "bold"), f": {plan.experiment.title}"))
        for line in (summary(plan), *plan.notes):
            self.say(f"  {line}")

    def begin(self, plans: Sequence[Plan], workers: int) -> None:
        """Print how much will be measured, and start the live line; workers start after this."""
        outstanding = [run for plan in plans for run in plan.outstanding]
        self._left = TimeLeft((run.kind, run.seconds) for run in outstanding)
        starting = f"starting {workers} worker process{'es' if workers > 1 else ''}"
        self.say(f"\n{len(outstanding)} measurements in all{self._time_left(', ')}; {starting}")
        self._begin_activity(starting)
        self._progress.update(self._task, total=len(outstanding))
        self._progress.start()
        if self._progress.disable:
            threading.Thread(target=self._break_silence, daemon=True, name="progress").start()

    def end(self) -> None:
        self._ended.set()
        self._progress.stop()

    def round(self, plan: Plan, group: str, number: int, total: int) -> None:
        self._experiment = plan.experiment.name
        self.say(f"[{self._experiment}/{group}] round {number} of {total}{self._time_left(', ')}")

    def run(self, run: PlannedRun) -> None:
        self._begin_activity(short(f"{self._experiment}: {run.named}", 60, quote=False))

    def together(self, runs: Sequence[PlannedRun], how: str) -> None:
        self._begin_activity(f"{self._experiment}: {len(runs)} runs, {how}")

    def measured(self, run: PlannedRun, outcome: Outcome, seconds: float) -> None:
        self._advance(run, seconds)
        if outcome.status != "done":
            self.failed.append(f"{run.id} ({outcome.status})")
            self.say(Text(f"  {run.named}: {outcome.status} ({outcome.reason})", style="bold red"))
            if outcome.log:
                self.say(f"  its workers' full output, private paths included: {outcome.log}")

    def left_out(self, run: PlannedRun) -> None:
        self._advance(run, None)

    def result(self, run: Run, results: Results, *, draw: bool) -> None:
        """Print the numbers of a run that has all its rounds.

        With `draw` its median step is drawn, unless the group already has a picture.
        """
        self.say(Text(result_line(run, results), style="bold"))
        group = (self._experiment, run.group)
        timeline = results.timeline(run)
        if timeline is None or run.K == 1 or not draw or group in self._drawn:
            return
        if not self._drawn:
            self.say(f"    its median step: {LEGEND}")
        self._drawn.add(group)
        self.say(gantt(timeline, min(_WIDTH, self.console.width - 14)))

    def _begin_activity(self, activity: str) -> None:
        self._activity, self._activity_began = activity, time.monotonic()
        self._progress.update(self._task, description=activity, left=self._time_left())

    def _advance(self, run: PlannedRun, seconds: float | None) -> None:
        self._left.done(run.kind, seconds)
        self._progress.update(self._task, advance=1, left=self._time_left())

    def _break_silence(self) -> None:
        """Print what runs after `quiet_s` seconds without a line, until the end."""
        while True:
            silence = time.monotonic() - self._last_line
            if silence >= self._quiet_s:
                task = self._progress.tasks[self._task]
                elapsed = duration(time.monotonic() - self._activity_began)
                self.say(
                    f"  {self._activity}, for {elapsed}; {task.completed:.0f} of {task.total:.0f} "
                    f"done{self._time_left(', ')}"
                )
                silence = 0.0
            if self._ended.wait(max(0.01, self._quiet_s - silence)):
                return

    def _time_left(self, prefix: str = "") -> str:
        """`about 4 min left` after a prefix; empty when that is unknown or over."""
        seconds_left = self._left.seconds
        return f"{prefix}about {duration(seconds_left)} left" if seconds_left else ""


def summary(plan: Plan) -> str:
    """How many runs are planned, done and skipped, and about how long the rest takes."""
    count = Counter(run.status for run in plan.runs)
    where = f"on {plan.machine.slug}" if plan.machine.count else "without a GPU"
    parts = [f"{len(plan.runs)} runs at scale {plan.scale} {where}", f"{count['done']} done"]
    if count["skipped"]:
        reasons = Counter(run.reason for run in plan.runs if run.status == "skipped")
        listed = ", ".join(f"{number} x {reason}" for reason, number in reasons.items())
        parts.append(f"{count['skipped']} skipped ({listed})")
    if plan.outstanding:
        rounds = max(len(plan.fresh_rounds(group.name)) for group in plan.experiment.groups)
        about = f", about {duration(plan.seconds)}" if plan.seconds else ""
        parts.append(
            f"{count['planned']} to measure in {rounds} round{'s' if rounds > 1 else ''}{about}"
        )
    return "; ".join(parts)


def plan_table(plan: Plan) -> "RenderableType":
    """The runs of a plan; columns for settings such as the schedule if they vary.

    Each has a line; trainings of one arm that differ in seed and learning rate share one.
    """
    columns = {"schedule": "schedule", "recompute": "checkpoint", "fidelity": "fidelity"}
    various = varied([run.spec for run in plan.runs], columns.values())
    alike: dict[tuple[Any, ...], list[PlannedRun]] = {}
    for run in plan.runs:
        spec, training = run.spec, run.spec.training
        own = (training.arm, training.tuning) if training and training.arm else run.id
        # Two groups may have the same run.
        key = run.group, own, spec.K, spec.M, spec.N, run.have, run.label
        alike.setdefault(key, []).append(run)
    lines = []
    for runs in alike.values():
        run, spec = runs[0], runs[0].spec
        name = run.id if len(runs) == 1 else f"{len(runs)} x {run.id.rpartition('-')[0]}"
        line = {"run": name, "K": str(spec.K), "M": str(spec.M), "N": str(spec.N)}
        line |= {name: getattr(spec, of) for name, of in columns.items() if of in various}
        line["differs in"] = _differ_in(runs)
        line["rounds"] = "-" if run.status == "skipped" else f"{run.have} of {run.wanted}"
        line["status"] = f"{run.label}, as baseline" if run.added else run.label
        lines.append(line)
    words = (*columns, "differs in", "rounds", "status")
    return table_of(lines, ("run", *words), words)


def _differ_in(runs: Sequence[PlannedRun]) -> str:
    """What tells these runs from the others of their plan; several are of one arm."""
    training = runs[0].spec.training
    if len(runs) == 1 or training is None:
        return runs[0].differs_in
    seeds, rates = (
        "|".join(dict.fromkeys(setting(run.spec, field) for run in runs))
        for field in ("seed", "lr")
    )
    text = f"arm={training.arm}, seed={seeds}"
    return f"{text}, tried rate={rates}" if training.tuning else text


def result_line(run: Run, results: Results) -> str:
    """A run's numbers in one line, with the names that they have in the table at the end."""
    found = {name: text for name, text in numbers(run, results, BASES).items() if text != "-"}
    shown = [f"{run.unit if name == 'throughput' else name} {found[name]}" for name in found]
    return f"  {run.named}: {', '.join(shown)}"


def gantt(timeline: Timeline, width: int) -> Text:
    """A line per rank: a letter for each slice of the step, `.` where the rank idled."""
    text = Text()
    total = timeline.step_time or 1.0
    for rank in range(timeline.ranks):
        text.append(f"    {timeline.row_name(rank)} |")
        spans = timeline.on(rank)
        for cell in range(width):
            moment = timeline.start + (cell + 0.5) * total / width
            kind = next((s.kind for s in spans if s.start <= moment < s.end), "")
            text.append(kind[:1] or ".", style=COLOURS.get(kind, "dim"))
        text.append("|\n" if rank < timeline.ranks - 1 else "|")
    return text
