"""What the terminal shows while runs are measured: the plan, where we are, a small Gantt, what came out.

On a terminal a live line with the time left stands below the story; elsewhere only plain lines are printed. The live
line is drawn once a second, because drawing takes time from the cores that are being measured.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from repro.gpipe.schedule.timeline import Timeline
from repro.harness import contention
from repro.harness.job import Outcome
from repro.harness.plan import Plan, PlannedRun
from repro.harness.spec import run_name
from repro.harness.terminal import rate, seconds, show, size

if TYPE_CHECKING:
    from rich.console import RenderableType

COLOURS = {"F": "bold blue", "R": "bold yellow", "B": "bold green", "U": "bold white", "setup": "dim"}
_WIDTH = 72


class Story:
    """Tells what happens during `repro run`.

    Time left is the sum over outstanding measurements of how long that run took last time, or of the mean of all
    while it has not run yet.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True, markup=False)
        self._left: Counter[str] = Counter()
        self._took: dict[str, float] = {}
        self._guess = 0.0
        self._said_busy = False
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
        self._task = self._progress.add_task("starting workers", total=None, left="")

    def say(self, text: str | Text = "") -> None:
        """One line of the story."""
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
            f"this machine is busy: {contention.in_words(share)}, so steps take longer and differ more; "
            "end them, or measure again later with --force"
        )

    def plan(self, plan: Plan) -> None:
        """What is about to be measured for one experiment."""
        self.say(Text.assemble((f"\n{plan.experiment.name}", "bold"), f": {plan.experiment.title}"))
        self.say(f"  {summary(plan)}")
        for note in plan.notes:
            self.say(f"  {note}")

    def begin(self, plans: Iterable[Plan]) -> None:
        """Start the live line."""
        members = [
            (run.id, plan.pace[group.name])
            for plan in plans
            for group in plan.experiment.groups
            for round_ in plan.fresh_rounds(group.name)
            for run in round_
        ]
        self._left = Counter(run for run, _ in members)
        self._guess = sum(seconds for _, seconds in members) / max(1, len(members))
        self._progress.update(self._task, total=len(members))
        self._progress.start()

    def end(self) -> None:
        """Take the live line away."""
        self._progress.stop()

    def round(self, plan: Plan, group: str, number: int, total: int) -> None:
        """A round begins."""
        left = self._time_left()
        self.say(f"[{plan.experiment.name}/{group}] round {number} of {total}" + (f", {left}" if left else ""))

    def run(self, run: PlannedRun) -> None:
        """A run begins."""
        self._progress.update(self._task, description=run.named, left=self._time_left())

    def measured(self, run: PlannedRun, outcome: Outcome, seconds: float) -> None:
        """A run ended, well or not."""
        self._took[run.id] = seconds
        self._left[run.id] -= 1
        self._progress.update(self._task, advance=1, left=self._time_left())
        if outcome.status != "done":
            self.say(Text(f"  {run.named}: {outcome.status} ({outcome.reason})", style="bold red"))
            if outcome.log:
                self.say(f"  its workers' output, as it was printed, private paths and all: {outcome.log}")

    def closing(self, parts: "Iterable[RenderableType]") -> None:
        """What came out, see `repro.harness.closing`."""
        show(parts, self.console.file)

    def dropped(self, run: PlannedRun) -> None:
        """A run will not be measured in this round, since it failed before."""
        self._left[run.id] -= 1
        self._progress.update(self._task, advance=1)

    def result(self, row: dict[str, Any], timeline: Timeline | None) -> None:
        """A run has all its rounds: its numbers, and the picture of its median step."""
        self.say(Text(result_line(row), style="bold"))
        if timeline is not None and row["K"] > 1:
            self.say(gantt(timeline, min(_WIDTH, self.console.width - 14)))

    def _time_left(self) -> str:
        mean = sum(self._took.values()) / len(self._took) if self._took else self._guess
        return (
            f"about {duration(left)} left"
            if (left := sum(count * self._took.get(run, mean) for run, count in self._left.items()))
            else ""
        )


def summary(plan: Plan) -> str:
    """How many runs there are, what is done, what is skipped and why, and about how long the rest takes."""
    count = Counter(run.status for run in plan.runs)
    parts = [f"{len(plan.runs)} runs at scale {plan.scale} on {plan.machine.slug}", f"{count['done']} done"]
    if count["skipped"]:
        reasons = Counter(run.reason for run in plan.runs if run.status == "skipped")
        parts.append(f"{count['skipped']} skipped ({', '.join(f'{n} x {why}' for why, n in reasons.items())})")
    if plan.open:
        rounds = max(len(plan.fresh_rounds(group.name)) for group in plan.experiment.groups)
        about = f", about {duration(plan.seconds)}" if plan.seconds else ""
        parts.append(f"{count['planned']} to measure in {rounds} round{'s' if rounds > 1 else ''}{about}")
    return "; ".join(parts)


def plan_table(plan: Plan) -> Table:
    """The runs of a plan, one line each; recompute and fidelity where they are not the same for all."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", no_wrap=True)
    for name in ("K", "M", "N"):
        table.add_column(name, justify="right", no_wrap=True)
    named = {"recompute": "checkpoint", "fidelity": "fidelity"}
    varied = [name for name, field in named.items() if len({getattr(run.spec, field) for run in plan.runs}) > 1]
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


def result_line(row: Mapping[str, Any]) -> str:
    """`transformer-K2-M4-3fa9c1 (d=64): step 512 ms, 62.5 sequences/s, 1.62x [1.58, 1.66] over K=1, idle 21% ...`."""
    if row["size"]:
        return f"  {run_name(row['run'], row['differs_in'])}: {_fitted(row)}"
    shown = run_name(row["run"], "" if row["fidelity"] == "measured" else row["fidelity"], row["differs_in"])
    if row["step_s"] != row["step_s"]:
        return f"  {shown}: done; the report shows what came of it"
    text = f"  {shown}: step {seconds(row['step_s'])}, {rate(row['throughput'], row['unit'])}"
    if row["K"] > 1 and row["speedup_vs_k1"] == row["speedup_vs_k1"]:
        low, high = row["speedup_vs_k1_ci_low"], row["speedup_vs_k1_ci_high"]
        interval = f" [{low:.2f}, {high:.2f}]" if low == low else ""
        interval += " ~ no difference shown" if low <= 1 <= high else ""
        text += f", {row['speedup_vs_k1']:.2f}x{interval} over K=1 at the same N, M and re-materialization"
    if row["K"] > 1 and row["bubble_idle_over_total"] == row["bubble_idle_over_total"]:
        text += f", idle {row['bubble_idle_over_total']:.0%} of K x step"
    return text


def _fitted(row: Mapping[str, Any]) -> str:
    if row["parameters"] != row["parameters"]:
        return row["size"]
    found = "" if row["size"] == "as given" else "largest "
    return (
        f"{found}{row['size']}, {row['parameters'] / 1e6:,.1f} million parameters, "
        f"{size(2**30 * row['peak_gib_max'])} on the fullest stage ({row['fidelity']})"
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
