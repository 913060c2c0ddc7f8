"""`repro advise`: how to use some devices for a model, ranked by simulated step time."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from repro.cli.answers import same, tell
from repro.cli.options import MiniBatch, json_file, parse
from repro.cli.source import Chosen, SourceOptions, chosen, this_machine
from repro.costs.error_bars import UNKNOWN
from repro.costs.units import in_unit, parse_bytes, readable
from repro.harness import catalog
from repro.harness.sizes import DEFAULT_N

if TYPE_CHECKING:
    from repro.harness.advise import Advice, Plan, Question

_TOO_LARGE = 2  # plans of each kind that do not fit and are shown
_COLUMNS = ("method", "K", "D", "M", "checkpoint", "step_s", "step_low_s", "step_high_s", "bubble")


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdviseOptions(SourceOptions):
    """Find the fastest way to train a model on some devices, and why others are slower.

    Steps are simulated as by `repro simulate`, memory is counted as by `repro fit`: for schedules,
    K stages, D replicas, M micro-batches, checkpoint modes and cuts.
    """

    devices: Annotated[int | None, Interval(ge=1, le=64)] = None
    """how many there are; with --device here all of them"""
    memory: str | None = None
    """of each device, such as 16GB (10^9 bytes) or 16GiB (2^30); by default the profile's"""
    N: MiniBatch = DEFAULT_N
    """mini-batch, over all replicas"""
    top: Annotated[int, Interval(ge=1, le=100)] = 5
    """plans to show"""
    save: Path | None = None
    """write the spec of the best plan to this .json file, which `repro run --spec` measures"""


def main(arguments: list[str]) -> int:
    options = parse(AdviseOptions, arguments, "repro advise")
    save = options.save and json_file("--save", options.save)
    of = chosen(options)
    question, unit = _question(options, of)
    advice = question.answer(options.top)
    best = advice.plans[0]
    of.warn((best.devices,), {best.spec.M: best.examples}, options.optimizer)
    if save is not None:
        save.write_text(json.dumps(best.spec.plain(), indent=1) + "\n", encoding="utf-8")
    fields = {
        "fidelity": "simulated",
        "memory_fidelity": "counted",
        "model_args": of.model_args,
        "on": of.on,
        **same(question, "model", "devices", "memory", "N", "optimizer"),
        "one_device_bytes": advice.one_device_bytes,
        "simulated_plans": advice.examined,
        **{
            name: [_line(plan, advice, question.memory, unit) for plan in getattr(advice, name)]
            for name in ("plans", "too_large", "do_not_fit")
        },
        "reference": advice.reference and _line(advice.reference, advice, question.memory, unit),
        "command": _command(best),
    }
    tell(_for_terminal(fields, of, advice, unit, save), fields, as_json=options.json)
    return 0


def _question(options: AdviseOptions, of: Chosen) -> tuple["Question", str]:
    from repro.harness.advise import Question

    if of.waits:
        raise ValueError(
            f"model = '{of.model.name}': its layers take the same time for every micro-batch, so "
            "nothing can be advised; name a model that computes"
        )
    devices = options.devices
    if options.device == "here":
        devices = devices or this_machine().count
    if devices is None:
        raise ValueError("--devices: say how many there are; try --devices 8")
    memory, unit = of.memory, "GB"
    if options.memory is not None:
        memory, unit = parse_bytes("--memory", options.memory)
    if memory is None:
        raise ValueError("--memory: a calibration does not know it; try --memory 8GB")
    counts = devices, memory, options.N
    return Question(of.source, of.model_args, *counts, options.optimizer), unit


def _line(plan: "Plan", advice: "Advice", memory: int, unit: str) -> dict[str, Any]:
    from repro.harness.advise import why_slower

    spec, best = plan.spec, advice.plans[0]
    if plan.peak > memory:
        holder = "stage" if spec.stages_per_rank is None else "rank"
        over = f"{in_unit(plan.peak, unit)} of {in_unit(memory, unit)}"
        why_not = f"does not fit: {over} on {holder} {plan.fullest}"
    else:
        why_not = plan.refused or ("" if plan is best else why_slower(plan, best))
    low, high = advice.error.ends(plan.step_s) if advice.error else (None, None)
    return {
        **same(spec, "method", "schedule", "K", "D", "M", "stages_per_rank"),
        **same(spec, "checkpoint", "balance"),
        "step_s": plan.step_s,
        "step_low_s": low,
        "step_high_s": high,
        "bubble": plan.share("bubble"),
        "idle": plan.idle,
        "peak_bytes": plan.peak_bytes,
        "why_not": why_not,
    }


def _for_terminal(
    fields: dict[str, Any], of: Chosen, advice: "Advice", unit: str, saved: Path | None
) -> dict[str, Any]:
    plans, reference = fields["plans"], fields["reference"]
    lines = [{"": str(rank), **plan} for rank, plan in enumerate(plans, 1)]
    if reference is not None and reference not in plans:
        lines.append({"": "ref", **reference})
    for refused in (fields["too_large"], fields["do_not_fit"]):
        lines += [{"": "-", **plan} for plan in refused[:_TOO_LARGE]]
    on = "x " if of.calibration is None else "devices, "
    found: dict[str, Any] = {
        "simulated": f"{of.title} on {fields['devices']} {on}{of.on}",
        "mini-batch": f"N={fields['N']}, optimizer {fields['optimizer']}",
        "counted": f"one device alone would need {readable(fields['one_device_bytes'], unit)} "
        f"(K=1, M=1, nothing recomputed) and has {readable(fields['memory'], unit)}",
        "plans": [
            {
                **{name: line[name] for name in ("", *_COLUMNS)},
                "fullest": readable(max(line["peak_bytes"]), unit),
                "why not": line["why_not"],
            }
            for line in lines
        ],
    }
    found["step low, high"] = str(advice.error or UNKNOWN)
    found["layers of the best"] = "+".join(map(str, plans[0]["balance"]))
    found["to measure it"] = fields["command"]
    if saved is not None:
        trust = " --trust" if fields["model"].startswith("import:") else ""  # it names code
        found["wrote"] = f"{saved}; on such devices `repro run --spec {saved}{trust}` measures it"
    return found


def _command(plan: "Plan") -> str:
    from repro.models import parameters

    spec = plan.spec
    args = dict(spec.model_args)
    # Without any argument a sweep would take a small model on a CPU: name one at its default.
    for name, parameter in parameters(spec.model).items():
        if not args and parameter.default is not parameter.empty:
            args = {name: parameter.default}
    names = ["model", "N", "D", "checkpoint", "schedule", "stages_per_rank", "balance", "optimizer"]
    values = {"K": (spec.K,), "M": (spec.M,), "model_args": args or None}
    return f"repro run {catalog.find('sweep').given(same(spec, *names) | values).command}"
