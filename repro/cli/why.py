"""`repro why`: why a recorded run is slow, and what would make it faster."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from repro.cli.answers import AnswerOptions, same, tell
from repro.cli.options import parse
from repro.harness.results import Results, Run, find_run, load

if TYPE_CHECKING:
    from repro.gpipe.schedule.what_if import Explanation
    from repro.harness.variants import Variant

_LEAST_GAIN = 1.02  # a smaller one is not recommended, nor one within the error of the replay


@dataclasses.dataclass(frozen=True, kw_only=True)
class WhyOptions(AnswerOptions):
    """Explain why a recorded run is slow and which changes would make it faster.

    [RUN] is a run's id or a part of one, after as much of its place as tells it from others:
    table2/transformer-K2.
    """

    run: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """named first"""
    results: Path = Path("results")
    """the folder with the run; the committed results in it are searched last"""


def main(arguments: list[str]) -> int:
    options = parse(WhyOptions, arguments, "repro why")
    results, run = find_run(options.run, options.results)
    fields = _fields(results, run, explain(results, run))
    tell(_for_terminal(fields, run), fields, as_json=options.json)
    return 0


def _fields(results: Results, run: Run, explanation: "Explanation") -> dict[str, Any]:
    """What is found, in seconds and in shares of K x step.

    The critical path is of each stage: kind -> seconds that the end of the step waited for.
    """
    from repro.gpipe.schedule.breakdown import breakdown
    from repro.gpipe.schedule.critical import by_stage
    from repro.harness.variants import variants_of

    spec, timeline = run.spec, explanation.timeline
    variants = variants_of(results, run, explanation)
    changes = _changes(explanation, variants)
    # v stages a rank divide the bubble by v (arXiv:2104.04473, section 2.2).
    work = spec.M * (spec.stages_per_rank or 1)
    return {
        "run": run.id,
        **same(spec, "fidelity", "K", "M", "N", "D", "schedule", "stages_per_rank", "checkpoint"),
        "step_s": timeline.step_time,
        "idle_over_total": timeline.idle_over_total,
        "bubble_in_theory": (spec.K - 1) / (work + spec.K - 1),
        "breakdown": breakdown(timeline, explanation.schedule),
        "critical_path": by_stage(explanation.path, spec.total_stages),
        "replayed_s": explanation.base_s,
        "changes": changes,
        "variants": variants,
        "verdict": _verdict(explanation, variants, changes),
    }


def _changes(explanation: "Explanation", variants: "list[Variant]") -> list[dict[str, Any]]:
    """What each change gives, the most first: as recorded where a run has it, else as replayed."""
    from repro.gpipe.schedule.what_if import CHANGES

    recorded = {variant.change: variant for variant in variants}
    found = []
    for change in explanation.changes:
        line: dict[str, Any] = {"change": change.name}
        if variant := recorded.get(change.name):
            line |= {**same(variant, "step_s", "gain", "fidelity"), "how": variant.run}
        else:
            line |= {"step_s": change.step_s, "gain": change.factor, "fidelity": "simulated"}
            line["how"] = CHANGES[change.name]
        found.append(line)
    return sorted(found, key=lambda line: -line["gain"])


def _for_terminal(fields: dict[str, Any], run: Run) -> dict[str, Any]:
    """The same, with the critical path in shares of the step."""
    step_s = fields["step_s"]
    return fields | {
        "run": "/".join((*run.place, run.id)),
        "critical_path": [
            {"stage": j} | {kind: seconds / step_s for kind, seconds in stage.items()}
            for j, stage in enumerate(fields["critical_path"])
        ],
        "variants": [
            {
                "change": variant.name,
                "predicted": f"{variant.predicted:.2f}x" if variant.predicted else "-",
                run.fidelity: variant.gain_text,
                "run": variant.run,
            }
            for variant in fields["variants"]
        ],
    }


def _verdict(
    explanation: "Explanation", variants: "list[Variant]", changes: list[dict[str, Any]]
) -> str:
    """The best change that costs no memory; none whose recorded gain may be chance."""
    from repro.gpipe.schedule.what_if import NEVER
    from repro.harness.spec import TIMED

    gains = {variant.change: variant.gain_text for variant in variants}
    unclear = {
        variant.change for variant in variants if variant.fidelity in TIMED and not variant.low > 1
    }
    error = explanation.base_s / explanation.timeline.step_time - 1
    threshold = max(_LEAST_GAIN, 1 + abs(error))
    for line in (each for each in changes if each["change"] not in {NEVER, *unclear}):
        if line["gain"] >= threshold:
            gain = gains.get(line["change"], f"{line['gain']:.2f}x")
            how = f"({line['fidelity']}), the most of what costs no memory"
            return f"{line['change']}: {gain} {how}"
    return f"no change that costs no memory would give more than {threshold:.2f}x"


def explain(results: Results, run: Run) -> "Explanation":
    """The recorded step of a run explained; a ValueError of one line if it has no timeline."""
    from repro.gpipe.schedule.what_if import Explanation

    timeline, spec = results.timeline(run), run.spec
    if timeline is None:
        others = [results, load(results.journals[0].root)]  # of its experiment, and then all
        found = (each.id for of in others for each in of.runs if of.timeline(each))
        other = next(found, None)
        hint = f"choose one that has, such as {other}" if other else "`repro run sweep` records one"
        raise ValueError(
            f"run = {run.id} has no timeline: its status is {run.status}, task = '{spec.task}', "
            f"library = '{spec.library}', trace = {spec.trace}; {hint}"
        )
    try:
        return Explanation.of(timeline, spec.make_schedule(), spec.N // spec.D)
    except ValueError as error:
        raise ValueError(f"run = {run.id}: {error}") from None
