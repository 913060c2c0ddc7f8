"""`repro why`: why a recorded run is slow, and what would make it faster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from repro.cli.answers import tell
from repro.cli.options import parse_named
from repro.harness.results import Results, Run, find_run
from repro.harness.terminal import table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe.schedule.what_if import Change, Why
    from repro.harness.neighbours import Neighbour


@dataclasses.dataclass(frozen=True)
class WhyOptions:
    """Explain why a recorded run is slow and which changes would make it faster.

    [RUN] is a run's id or the beginning of one, after as much of its place as tells it from
    others: table2/transformer-K2.
    """

    run: str = ""
    """the run, where it is not named first"""
    results: Path = Path("results")
    """the folder with the run; the committed results in it are searched last"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds"""


def main(arguments: list[str]) -> int:
    options = parse_named(
        WhyOptions, arguments, "why", "run", "`repro report` lists all in its table of runs"
    )
    results, run = find_run(options.run, options.results)
    tell(Answer.of(results, run, explain(results, run)), as_json=options.json)
    return 0


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is found; `--json` prints these fields, in seconds.

    Attributes:
        critical_path: of each stage, kind -> seconds that the end of the step waited for.
        replayed_s: the recorded step, replayed; the changes are replayed too.
        neighbours: recorded runs that differ in one field, with measured and predicted gain.
    """

    run: str
    fidelity: str
    K: int
    M: int
    N: int
    D: int
    schedule: str
    checkpoint: str
    step_s: float
    bubble_idle_over_total: float
    breakdown: dict[str, float]
    critical_path: list[dict[str, float]]
    replayed_s: float
    changes: "tuple[Change, ...]"
    neighbours: "list[Neighbour]"
    verdict: str
    heading: str = dataclasses.field(repr=False)

    @classmethod
    def of(cls, results: Results, run: Run, why: "Why") -> "Answer":
        from repro.gpipe.schedule.breakdown import breakdown
        from repro.gpipe.schedule.critical import by_stage
        from repro.harness.neighbours import disproved, neighbours

        tried, spec = neighbours(results, run, why), run.spec
        return cls(
            run=run.id,
            **spec.model_dump(include={"fidelity", "K", "M", "N", "D", "schedule", "checkpoint"}),
            step_s=why.timeline.step_time,
            bubble_idle_over_total=why.timeline.bubble_over_total,
            breakdown=breakdown(why.timeline, why.schedule),
            critical_path=by_stage(why.path, spec.total_stages),
            replayed_s=why.base_s,
            changes=why.changes,
            neighbours=tried,
            verdict=why.verdict_without(disproved(tried)),
            heading=_heading(run, why),
        )

    def parts(self) -> list["RenderableType"]:
        """For the terminal."""
        from rich.text import Text

        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.breakdown.items())
        return [
            self.heading,
            f"K x step: {shares}",
            "bubble: idle time that equal stages with free messages would have as well; transfer: "
            "the other idle time, for messages and for the runtime\n",
            "Critical path: what the end of the step waited for, as shares of the step",
            self._path_table(),
            f"\nWhat would change it: simulated with the {self.fidelity} costs",
            self._changes_table(),
            *self._neighbours_table(),
            Text(f"\n{self.verdict}", style="bold"),
        ]

    def _path_table(self) -> "RenderableType":
        total = {
            kind: sum(stage[kind] for stage in self.critical_path) for kind in self.critical_path[0]
        }
        kinds = [kind for kind, seconds in total.items() if seconds]

        def row(name: str, seconds: dict[str, float]) -> list[str]:
            cells = [
                f"{seconds[kind] / self.step_s:.1%}" if seconds[kind] else "" for kind in kinds
            ]
            return [name, *cells, f"{sum(seconds.values()) / self.step_s:.1%}"]

        stages = [row(f"stage {j}", seconds) for j, seconds in enumerate(self.critical_path)]
        titles = ("message" if kind == "transfer" else kind for kind in kinds)
        return table_of(["", *titles, "all"], [*stages, row("all", total)], left=("",))

    def _changes_table(self) -> "RenderableType":
        from repro.gpipe.schedule.what_if import CHANGES

        error = f"replayed: {self.replayed_s / self.step_s - 1:+.1%} of the recorded step"
        rows = [["unchanged", _ms(self.replayed_s), "1.00x", error]]
        rows += [[c.name, _ms(c.step_s), f"{c.factor:.2f}x", CHANGES[c.name]] for c in self.changes]
        columns = ("change", "step (ms)", "gain", "what it assumes")
        return table_of(columns, rows, left=(columns[0], columns[3]), wrapped=columns[3:])

    def _neighbours_table(self) -> list["RenderableType"]:
        """The gains of recorded runs with one change, beside the predicted ones."""
        if not self.neighbours:
            return []
        rows = [
            (
                each.name,
                f"{each.predicted:.2f}x" if each.predicted else "-",
                each.gain_text,
                each.run,
            )
            for each in self.neighbours
        ]
        return [
            "\nRecorded runs of the experiment that differ in one field: throughput over this "
            f"one's, {self.fidelity}\nin the same rounds; [95 % interval] from five rounds on, "
            "~ if it shows no difference",
            table_of(("change", "predicted", self.fidelity, "run"), rows, left=("change", "run")),
        ]


def explain(results: Results, run: Run) -> "Why":
    """The recorded step of a run explained.

    Raises:
        ValueError: one line, if there is no timeline, or none that fits the spec.
    """
    from repro.gpipe.schedule.what_if import Why

    spec, timeline = run.spec, results.timeline(run)
    if timeline is None:
        if spec.task != "train":
            reason = f"its task is '{spec.task}', which times no step"
        elif not spec.trace or spec.library != "repro":
            reason = "it was timed without spans (trace=false, or another library)"
        else:
            reason = f"its status is {run.status}"
        other = next((each for each in results.runs if results.timeline(each)), None)
        hint = "`repro run sweep` records runs that have one"
        if other:
            hint = f"choose one that has, such as {other.id}"
        raise ValueError(f"run = {run.id} has no timeline: {reason}; {hint}")
    try:
        return Why.of(timeline, spec.make_schedule(), spec.N // spec.D)
    except ValueError as error:
        raise ValueError(f"run = {run.id}: {error}") from None


def _heading(run: Run, why: "Why") -> str:
    spec = run.spec
    held, theory, work = "", "(K-1)/(M+K-1)", spec.M
    if spec.stages_per_rank is not None:
        # v stages a rank divide the bubble by v (arXiv:2104.04473, section 2.2).
        held = f" with v={spec.stages_per_rank} stages a rank"
        theory, work = "(K-1)/(v M+K-1)", spec.M * spec.stages_per_rank
    replicas = f", {spec.D} replicas" if spec.D > 1 else ""
    rounds = len(run.rounds)
    which = "its one round" if rounds == 1 else f"the newest of {rounds} rounds"
    return (
        f"{run.id} in {'/'.join(run.place)}\n{spec.fidelity}: K={spec.K}, M={spec.M}, "
        f"N={spec.N}{replicas}, schedule {spec.schedule}{held}, re-materialization "
        f"{spec.checkpoint}\nstep {_ms(why.timeline.step_time)} ms, the step recorded in {which}; "
        f"idle {why.timeline.bubble_over_total:.1%} of K x step, in theory {theory} = "
        f"{(spec.K - 1) / (work + spec.K - 1):.1%}"
    )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"
