"""`repro advise`: how to use some devices for a model, ranked by simulated step time."""

import dataclasses
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from repro.cli.answers import rows, same, tell
from repro.cli.options import parse_named
from repro.cli.source import Chosen, SourceOptions, chosen
from repro.harness import catalog, machine
from repro.harness.text import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.advise import Advice, Plan, Question

HERE = "here"
_TOO_LARGE = 2  # plans of each kind that do not fit and are shown


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdviseOptions(SourceOptions):
    """Find the fastest way to train a model on some devices, and why others are slower.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. Steps are simulated as by `repro
    simulate`, memory is counted as by `repro fit`: for schedules, K stages, D replicas, M
    micro-batches, checkpoint modes and cuts.
    """

    device: str | None = None
    """such as v100 (a wrong name lists all), a .json file that `repro calibrate` wrote, or here:
    this machine as `repro calibrate` measured it"""
    devices: Annotated[int | None, Interval(ge=1, le=64)] = None
    """how many there are; with --device here all of them"""
    memory: str | None = None
    """of each device, such as 16GB (10^9 bytes) or 16GiB (2^30); by default the profile's"""
    batch: Annotated[int, Interval(ge=1, le=4096)] = 128
    """mini-batch N, over all replicas"""
    link: Literal["nvlink", "nvlink2", "pcie", "pcie-host"] | None = None
    """between devices, instead of the device's own: that of h100, v100, p40 or p100-pcie"""
    top: Annotated[int, Interval(ge=1, le=100)] = 5
    """plans to show"""
    save: Path | None = None
    """write the best plan to this .json file, which `repro run --plan` measures"""


def main(arguments: list[str]) -> int:
    hint = "try `repro advise transformer --device v100 --devices 8`"
    options = parse_named(AdviseOptions, arguments, "advise", "model", hint, needed=False)
    save = options.save
    if save is not None and (save.suffix.lower() != ".json" or not save.parent.is_dir()):
        raise ValueError(f"--save {save}: allowed is the path of a .json file in a folder there is")
    if options.device == HERE:
        here = machine.detect("node" if machine.gpus() else "laptop")
        # That `repro calibrate` has written by default.
        path = Path("results") / here.slug / "device.json"
        if not path.is_file():
            raise ValueError(
                f"--device {HERE}: {path} is not there; `repro calibrate` measures this machine "
                "and writes it"
            )
        devices = options.devices or here.count
        options = dataclasses.replace(options, device=str(path), devices=devices)
    of = chosen(options)
    question, unit = _question(options, of)
    advice = question.answer(options.top)
    best = advice.plans[0]
    of.warn((best.devices,), {best.spec.M: best.examples}, options.optimizer)
    if save is not None:
        _save(save, of, best)
    fields = _fields(question, advice, of, unit)
    tell(fields, lambda: _parts(fields, of, advice, unit, save), as_json=options.json)
    return 0


def _question(options: AdviseOptions, of: Chosen) -> tuple["Question", str]:
    """The question, and the unit of memory as the user wrote it."""
    from repro.costs.device import LINKS, load
    from repro.costs.units import parse_bytes
    from repro.harness.advise import Question

    if of.waits:
        raise ValueError(
            f"model = '{of.model.name}': its layers take the same time for every micro-batch, so "
            "nothing can be advised; name a model that computes"
        )
    if options.devices is None:
        raise ValueError("--devices: say how many there are; try --devices 8")
    memory, unit = of.memory, "GB"
    if options.memory is not None:
        memory, unit = parse_bytes("--memory", options.memory)
    if memory is None:
        raise ValueError("--memory: a calibration does not know it; try --memory 8GB")
    link = options.link_speed
    if options.link is not None:
        if link is not None:
            raise ValueError(f"--link {options.link}, --link-gbps: both are given; leave one out")
        link = load(LINKS[options.link]).link
    source = of.source(options.optimizer, link)
    counts = options.devices, memory, options.batch
    return Question(source, of.model_args, *counts, options.optimizer), unit


def _save(path: Path, of: Chosen, plan: "Plan") -> None:
    from repro.costs import device
    from repro.harness.plan_file import PlanFile

    name = of.profile or of.on.partition(": ")[2]
    if of.profile is not None and of.profile not in device.names():
        name = device.load(of.profile).title
    PlanFile(device=name, predicted_s=plan.step_s, spec=plan.spec).save(path)


def _fields(question: "Question", advice: "Advice", of: Chosen, unit: str) -> dict[str, Any]:
    def lines(plans: "Iterable[Plan]") -> list[dict[str, Any]]:
        return [_line(plan, advice, question.memory, unit) for plan in plans]

    return {
        "fidelity": "simulated",
        "memory_fidelity": "counted",
        "model_args": of.model_args,
        "on": of.on,
        **same(question, "model", "devices", "memory", "batch", "optimizer"),
        "error_factor": advice.error and advice.error.factor,
        "one_device_bytes": advice.one_device_bytes,
        "simulated_plans": advice.examined,
        "plans": lines(advice.plans),
        "reference": lines([advice.reference])[0] if advice.reference else None,
        "too_large": lines(advice.too_large),
        "do_not_fit": lines(advice.do_not_fit),
        "command": _command(advice.plans[0]),
    }


def _line(plan: "Plan", advice: "Advice", memory: int, unit: str) -> dict[str, Any]:
    """A plan with why it is not the best, and the ends of its error bar."""
    from repro.costs.units import in_unit
    from repro.harness.advise import why_slower
    from repro.methods.named import name_of

    spec, best = plan.spec, advice.plans[0]
    if plan.peak > memory:
        holder = "stage" if spec.stages_per_rank is None else "rank"
        over = f"{in_unit(plan.peak, unit)} of {in_unit(memory, unit)}"
        why_not = f"does not fit: {over} on {holder} {plan.fullest}"
    else:
        why_not = "" if plan is best else why_slower(plan, best)
    low, high = advice.error.ends(plan.step_s) if advice.error else (None, None)
    named = same(spec, "library", "schedule", "K", "D", "tensor_parallel", "zero")
    return {
        "method": name_of(**named),
        **same(spec, "schedule", "K", "D", "M", "stages_per_rank", "checkpoint", "balance"),
        "step_s": plan.step_s,
        "step_low_s": low,
        "step_high_s": high,
        "bubble": plan.share("bubble"),
        "idle": plan.idle,
        "peak_bytes": plan.peak_bytes,
        "why_not": why_not,
    }


def _parts(
    fields: dict[str, Any], of: Chosen, advice: "Advice", unit: str, saved: Path | None
) -> list["RenderableType"]:
    """The ranked plans, the reference, the fastest that do not fit, and how to measure the best."""
    from repro.costs.units import readable

    plans = fields["plans"]
    lines = [{"": rank, **plan} for rank, plan in enumerate(plans, 1)]
    if fields["reference"] is not None and fields["reference"] not in plans:
        lines.append({"": "ref", **fields["reference"]})
    for refused in (fields["too_large"], fields["do_not_fit"]):
        lines += [{"": "-", **plan} for plan in refused[:_TOO_LARGE]]

    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else number(1e3 * seconds)

    columns = {
        **{name: itemgetter(name) for name in ("", "method", "K", "D", "M")},
        "recompute": itemgetter("checkpoint"),
        "step (ms)": lambda line: f"{1e3 * line['step_s']:,.1f}",
        "low": lambda line: ms(line["step_low_s"]),
        "high": lambda line: ms(line["step_high_s"]),
        "bubble": lambda line: f"{line['bubble']:.0%}",
        "fullest": lambda line: readable(max(line["peak_bytes"]), unit),
        "why not": itemgetter("why_not"),
    }
    on = "devices, " if of.calibration is not None else "x "
    parts: list[RenderableType] = [
        f"simulated: {of.title} on {fields['devices']} {on}{of.on}\nmini-batch N="
        f"{fields['batch']}, optimizer {fields['optimizer']}; one device alone would need "
        f"{readable(fields['one_device_bytes'], unit)} (counted; K=1, M=1, nothing recomputed) and "
        f"has {readable(fields['memory'], unit)}\n",
        rows(lines, columns, left=("", "method", "recompute", "why not")),
        "\nbubble: share of the step that equal stages with free messages would wait as well. "
        "fullest: tensors of the fullest device, counted; allocators take more",
    ]
    if bar := advice.error:
        ratios = f", and half of the ratios of two within {bar.ratio - 1:.0%}" if bar.ratio else ""
        parts.append(
            f"low, high: the step divided and multiplied by {bar.factor:.2f}; half of {bar.source} "
            f"were predicted at least so well{ratios}"
        )
    best = plans[0]
    cut = "+".join(map(str, best["balance"]))
    parts.append(f"\nbest: {best['method']}, layers {cut}; to measure it:\n  {fields['command']}")
    if saved is not None:
        parts.append(f"wrote {saved}; on such devices `repro run --plan {saved}` measures it")
    return parts


def _command(plan: "Plan") -> str:
    from repro.models import parameters

    spec = plan.spec
    args = dict(spec.model_args)
    # Without any argument a sweep would take a small model on a CPU: name one at its default.
    for name, parameter in parameters(spec.model).items():
        if not args and parameter.default is not parameter.empty:
            args = {name: parameter.default}
    names = ("model", "D", "checkpoint", "schedule", "stages_per_rank", "balance", "optimizer")
    values = {"K": (spec.K,), "M": (spec.M,), "batch": spec.N, "model_args": args or None}
    return f"repro run {catalog.find('sweep').command(same(spec, *names) | values)}"
