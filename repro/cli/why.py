"""`repro why`: why a recorded run is slow, and what would make it faster."""

import dataclasses
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from repro.cli.answers import rows, tell
from repro.cli.options import parse_named
from repro.harness.results import Results, Run, find_run
from repro.harness.terminal import table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe.schedule.what_if import Change, Explanation
    from repro.harness.variants import Variant

_LEAST_GAIN = 1.02  # a smaller one is not recommended, nor one within the error of the replay


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
        variants: recorded runs that differ in one field, with measured and predicted gain.
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
    variants: "list[Variant]"
    verdict: str
    recorded: Run = field(repr=False)

    @classmethod
    def of(cls, results: Results, run: Run, explanation: "Explanation") -> "Answer":
        from repro.gpipe.schedule.breakdown import breakdown
        from repro.gpipe.schedule.critical import by_stage
        from repro.harness.variants import variants_of

        timeline, variants = explanation.timeline, variants_of(results, run, explanation)
        same = {"fidelity", "K", "M", "N", "D", "schedule", "checkpoint"}
        return cls(
            run=run.id,
            **run.spec.model_dump(include=same),
            step_s=timeline.step_time,
            bubble_idle_over_total=timeline.bubble_over_total,
            breakdown=breakdown(timeline, explanation.schedule),
            critical_path=by_stage(explanation.path, run.spec.total_stages),
            replayed_s=explanation.base_s,
            changes=explanation.changes,
            variants=variants,
            verdict=_verdict(explanation, variants),
            recorded=run,
        )

    def parts(self) -> list["RenderableType"]:
        from rich.text import Text

        from repro.gpipe.schedule.what_if import CHANGES

        shares = ", ".join(f"{name} {share:.1%}" for name, share in self.breakdown.items())
        changes = {
            "change": lambda change: change.name,
            "step (ms)": lambda change: _ms(change.step_s),
            "gain": lambda change: f"{change.factor:.2f}x",
            "what it assumes": lambda change: CHANGES[change.name],
        }
        parts: list[RenderableType] = [
            self._heading(),
            f"K x step: {shares}",
            "bubble: idle time that equal stages with free messages would have as well; transfer: "
            "the other idle time, for messages and for the runtime\n",
            "Critical path: what the end of the step waited for, as shares of the step",
            self._path_table(),
            f"\nWhat would change it: simulated with the {self.fidelity} costs, which give "
            f"{_ms(self.replayed_s)} ms unchanged ({self.replayed_s / self.step_s - 1:+.1%})",
            rows(self.changes, changes, ("change", "what it assumes"), ("what it assumes",)),
        ]
        if self.variants:
            variants = {
                "change": lambda variant: variant.name,
                "predicted": lambda v: f"{v.predicted:.2f}x" if v.predicted else "-",
                self.fidelity: lambda variant: variant.gain_text,
                "run": lambda variant: variant.run,
            }
            parts += [
                "\nRecorded runs of the experiment that differ in one field: throughput over this "
                f"one's, {self.fidelity}\nin the same rounds; [95 % interval] from five rounds on, "
                "~ if it shows no difference",
                rows(self.variants, variants, left=("change", "run")),
            ]
        return [*parts, Text(f"\n{self.verdict}", style="bold")]

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

    def _heading(self) -> str:
        spec, rounds = self.recorded.spec, len(self.recorded.rounds)
        held, theory, work = "", "(K-1)/(M+K-1)", spec.M
        if spec.stages_per_rank is not None:
            # v stages a rank divide the bubble by v (arXiv:2104.04473, section 2.2).
            held = f" with v={spec.stages_per_rank} stages a rank"
            theory, work = "(K-1)/(v M+K-1)", spec.M * spec.stages_per_rank
        replicas = f", {spec.D} replicas" if spec.D > 1 else ""
        which = "its one round" if rounds == 1 else f"the newest of {rounds} rounds"
        return (
            f"{self.run} in {'/'.join(self.recorded.place)}\n{spec.fidelity}: K={spec.K}, "
            f"M={spec.M}, N={spec.N}{replicas}, schedule {spec.schedule}{held}, recompute "
            f"{spec.checkpoint}\nstep {_ms(self.step_s)} ms, the step recorded in {which}; idle "
            f"{self.bubble_idle_over_total:.1%} of K x step, in theory {theory} = "
            f"{(spec.K - 1) / (work + spec.K - 1):.1%}"
        )


def _verdict(explanation: "Explanation", variants: "list[Variant]") -> str:
    """The best change that costs no memory and that no recorded run contradicts."""
    from repro.gpipe.schedule.what_if import NEVER

    slower = {variant.change for variant in variants if variant.gain <= _LEAST_GAIN}
    allowed = [change for change in explanation.changes if change.name not in {NEVER, *slower}]
    error = explanation.base_s / explanation.timeline.step_time - 1
    threshold = max(_LEAST_GAIN, 1 + abs(error))
    if not allowed or allowed[0].factor < threshold:
        return f"no change that costs no memory would give more than {threshold:.2f}x"
    return f"{allowed[0].name}: {allowed[0].factor:.2f}x, the most of what costs no memory"


def explain(results: Results, run: Run) -> "Explanation":
    """The recorded step of a run explained.

    Raises:
        ValueError: one line, if there is no timeline, or none that fits the spec.
    """
    from repro.gpipe.schedule.what_if import Explanation

    timeline, spec = results.timeline(run), run.spec
    if timeline is None:
        reason = f"its status is {run.status}"
        if spec.task != "train":
            reason = f"its task is '{spec.task}', which times no step"
        elif not spec.trace or spec.library != "repro":
            reason = "it was timed without spans (trace=false, or another library)"
        other = next((each.id for each in results.runs if results.timeline(each)), None)
        hint = f"choose one that has, such as {other}" if other else "`repro run sweep` records one"
        raise ValueError(f"run = {run.id} has no timeline: {reason}; {hint}")
    try:
        return Explanation.of(timeline, spec.make_schedule(), spec.N // spec.D)
    except ValueError as error:
        raise ValueError(f"run = {run.id}: {error}") from None


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"
