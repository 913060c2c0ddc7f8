"""`repro why`: why a recorded run is slow, and what would make it faster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from repro.cli.answers import rows, same, tell
from repro.cli.options import parse_named
from repro.harness.results import Results, Run, find_run
from repro.harness.terminal import table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe.schedule.what_if import Explanation
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
    fields = _fields(results, run, explain(results, run))
    tell(fields, lambda: _parts(fields, run), as_json=options.json)
    return 0


def _fields(results: Results, run: Run, explanation: "Explanation") -> dict[str, Any]:
    """What is found, in seconds.

    Among it are the critical path: of each stage, kind -> seconds that the end of the step waited
    for; the recorded step replayed, as the changes are; and recorded runs that differ in one field,
    with measured and predicted gain.
    """
    from repro.gpipe.schedule.breakdown import breakdown
    from repro.gpipe.schedule.critical import by_stage
    from repro.harness.variants import variants_of

    timeline, variants = explanation.timeline, variants_of(results, run, explanation)
    return {
        "run": run.id,
        **same(run.spec, "fidelity", "K", "M", "N", "D", "schedule", "checkpoint"),
        "step_s": timeline.step_time,
        "bubble_idle_over_total": timeline.bubble_over_total,
        "breakdown": breakdown(timeline, explanation.schedule),
        "critical_path": by_stage(explanation.path, run.spec.total_stages),
        "replayed_s": explanation.base_s,
        "changes": explanation.changes,
        "variants": variants,
        "verdict": _verdict(explanation, variants),
    }


def _parts(fields: dict[str, Any], run: Run) -> list["RenderableType"]:
    from rich.text import Text

    from repro.gpipe.schedule.what_if import CHANGES

    step_s, fidelity, replayed_s = fields["step_s"], run.fidelity, fields["replayed_s"]
    shares = ", ".join(f"{name} {share:.1%}" for name, share in fields["breakdown"].items())
    changes = {
        "change": lambda change: change.name,
        "step (ms)": lambda change: _ms(change.step_s),
        "gain": lambda change: f"{change.factor:.2f}x",
        "what it assumes": lambda change: CHANGES[change.name],
    }
    parts: list[RenderableType] = [
        _heading(run, step_s, fields["bubble_idle_over_total"]),
        f"K x step: {shares}",
        "bubble: idle time that equal stages with free messages would have as well; transfer: "
        "the other idle time, for messages and for the runtime\n",
        "Critical path: what the end of the step waited for, as shares of the step",
        _path_table(fields["critical_path"], step_s),
        f"\nWhat would change it: simulated with the {fidelity} costs, which give "
        f"{_ms(replayed_s)} ms unchanged ({replayed_s / step_s - 1:+.1%})",
        rows(fields["changes"], changes, ("change", "what it assumes"), ("what it assumes",)),
    ]
    if fields["variants"]:
        variants = {
            "change": lambda variant: variant.name,
            "predicted": lambda v: f"{v.predicted:.2f}x" if v.predicted else "-",
            fidelity: lambda variant: variant.gain_text,
            "run": lambda variant: variant.run,
        }
        parts += [
            "\nRecorded runs of the experiment that differ in one field: throughput over this "
            f"one's, {fidelity}\nin the same rounds; [95 % interval] from five rounds on, ~ if it "
            "shows no difference",
            rows(fields["variants"], variants, left=("change", "run")),
        ]
    return [*parts, Text(f"\n{fields['verdict']}", style="bold")]


def _path_table(of_stages: list[dict[str, float]], step_s: float) -> "RenderableType":
    total = {kind: sum(stage[kind] for stage in of_stages) for kind in of_stages[0]}
    kinds = [kind for kind, seconds in total.items() if seconds]

    def row(name: str, seconds: dict[str, float]) -> list[str]:
        cells = [f"{seconds[kind] / step_s:.1%}" if seconds[kind] else "" for kind in kinds]
        return [name, *cells, f"{sum(seconds.values()) / step_s:.1%}"]

    lines = [row(f"stage {j}", seconds) for j, seconds in enumerate(of_stages)]
    titles = ("message" if kind == "transfer" else kind for kind in kinds)
    return table_of(["", *titles, "all"], [*lines, row("all", total)], left=("",))


def _heading(run: Run, step_s: float, idle: float) -> str:
    spec, rounds = run.spec, len(run.rounds)
    held, theory, work = "", "(K-1)/(M+K-1)", spec.M
    if spec.stages_per_rank is not None:
        # v stages a rank divide the bubble by v (arXiv:2104.04473, section 2.2).
        held = f" with v={spec.stages_per_rank} stages a rank"
        theory, work = "(K-1)/(v M+K-1)", spec.M * spec.stages_per_rank
    replicas = f", {spec.D} replicas" if spec.D > 1 else ""
    which = "its one round" if rounds == 1 else f"the newest of {rounds} rounds"
    return (
        f"{run.id} in {'/'.join(run.place)}\n{spec.fidelity}: K={spec.K}, M={spec.M}, N={spec.N}"
        f"{replicas}, schedule {spec.schedule}{held}, recompute {spec.checkpoint}\nstep "
        f"{_ms(step_s)} ms, the step recorded in {which}; idle {idle:.1%} of K x step, in theory "
        f"{theory} = {(spec.K - 1) / (work + spec.K - 1):.1%}"
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
