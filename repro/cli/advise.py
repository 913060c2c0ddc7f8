"""`repro advise`: how to use some devices for a model, ranked by simulated step time."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import check_range, parse_named
from repro.cli.simulate import SimulateOptions, Source, link_of, source_of, warnings_of
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import catalog, machine
from repro.harness.spec import Optimizer, assigned
from repro.harness.terminal import show, table_of
from repro.harness.text import number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.advise import Advice, Plan, Question
    from repro.harness.error_bars import ErrorBar

HERE = "here"
_MOST_DEVICES = 64
_MOST_EXAMPLES = 4096
_TOO_LARGE = 2  # plans of each kind that do not fit and are shown


@dataclasses.dataclass(frozen=True)
class AdviseOptions:
    """Find the fastest way to train a model on some devices, and why others are slower.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. Steps are simulated as by `repro
    simulate`, memory is counted as by `repro fit`: for schedules, K stages, D replicas, M
    micro-batches, checkpoint modes and cuts.
    """

    model: str = ""
    """the model, if it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""
    device: str | None = None
    """such as v100 (a wrong name lists all), a .json file that `repro calibrate` wrote, or here:
    this machine as `repro calibrate` measured it"""
    devices: int | None = None
    """how many there are; with --device here all of them"""
    memory: str | None = None
    """of each device, such as 16GB (10^9 bytes) or 16GiB (2^30); by default the profile's"""
    batch: int = 128
    """mini-batch N, over all replicas"""
    optimizer: Optimizer = "sgd"
    """adds its update and its state; with a calibration only the state"""
    link: Literal["nvlink", "nvlink2", "pcie", "pcie-host"] | None = None
    """between devices, instead of the device's own: that of h100, v100, p40 or p100-pcie"""
    link_gbps: float | None = None
    """or a link of this many 10^9 bits per second"""
    link_latency_us: float = 0.0
    """with --link-gbps: microseconds of each message"""
    calibration: Path | None = None
    """instead of a device: a file of `repro calibrate MODEL`, which names model and arguments"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """allow --calibration to name code: its model is import:package.module:function"""
    top: int = 5
    """plans to show"""
    save: Path | None = None
    """write the best plan to this .json file, which `repro run --plan` measures"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds and bytes"""


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question with what is shown of it.

    Attributes:
        question: of the search.
        source: the model and the source of its layer times.
        unit: of memory, as the user wrote it.
        device: what a plan's file calls the devices.
    """

    question: "Question"
    source: Source
    unit: str
    device: str


def main(arguments: list[str]) -> int:
    hint = "try `repro advise transformer --device v100 --devices 8`"
    options = parse_named(AdviseOptions, arguments, "advise", "model", hint, needed=False)
    _check(options)
    asked = _asked(options)
    from repro.harness.advise import advise
    from repro.harness.error_bars import calibration_error, profile_error

    advice = advise(asked.question, options.top)
    for line in _warnings(asked, advice.plans[0]):
        print(f"warning: {line}", file=sys.stderr)
    bar = calibration_error() if asked.source.calibration else profile_error()
    if options.save is not None:
        _save(options.save, asked, advice.plans[0])
    if options.json:
        print(json.dumps(_plain(asked, advice, bar)))
    else:
        show(_answer(asked, advice, bar, options.save))
    return 0


def _check(options: AdviseOptions) -> None:
    check_range("devices", options.devices, _MOST_DEVICES)
    check_range("batch", options.batch, _MOST_EXAMPLES)
    check_range("top", options.top, 100)
    if options.save is not None:
        _check_save(options.save)


def _check_save(path: Path) -> None:
    if path.suffix.lower() != ".json" or path.is_dir():
        raise ValueError(f"--save {path}: allowed is the path of a .json file; try {path}.json")
    if not path.parent.is_dir():
        raise ValueError(
            f"--save {path}: there is no folder {path.parent}; make it, or try {path.name}"
        )


def _asked(options: AdviseOptions) -> Asked:
    from repro.costs import device
    from repro.costs.units import parse_bytes
    from repro.harness.advise import Question

    link = _link(options)
    is_here = options.device == HERE
    path = str(_profile_of_this_machine()) if is_here else options.device
    source = source_of(
        SimulateOptions(
            model=options.model,
            model_args=options.model_args,
            device=path,
            calibration=options.calibration,
            trust=options.trust,
        )
    )
    if source.waits:
        raise ValueError(
            f"model = '{source.model}': its layers take the same time for every micro-batch, so "
            "nothing can be advised; name a model that computes"
        )
    devices = options.devices
    if devices is None and is_here:
        devices = _this_machine().count
    if devices is None:
        raise ValueError("--devices: say how many there are; try --devices 8")
    memory, unit = source.memory, "GB"
    if options.memory is not None:
        memory, unit = parse_bytes("--memory", options.memory)
    if memory is None:
        raise ValueError("--memory: a calibration does not know it; try --memory 8GB")
    name = source.text.partition(": ")[2] if source.calibration else options.device or ""
    if source.profile is not None and source.profile not in device.names():
        name = device.load(source.profile).title
    question = Question(
        model=source.model,
        model_args=source.model_args,
        devices=devices,
        memory=memory,
        batch=options.batch,
        optimizer=options.optimizer,
        profile=source.profile,
        link=link,
        calibration=source.calibration,
    )
    return Asked(question, source, unit, name)


def _link(options: AdviseOptions) -> LinkSpeed | None:
    given = link_of(options.link_gbps, options.link_latency_us)
    if options.link is None:
        return given
    if given is not None:
        raise ValueError(f"--link {options.link}, --link-gbps: both are given; leave one out")
    from repro.costs.device import LINKS, load

    return load(LINKS[options.link]).link


def _this_machine() -> machine.Machine:
    """The devices that `repro calibrate` measures."""
    return machine.detect("node" if machine.gpus() else "laptop")


def _profile_of_this_machine() -> Path:
    """The profile that `repro calibrate` has written by default."""
    path = Path("results") / _this_machine().slug / "device.json"
    if not path.is_file():
        raise ValueError(
            f"--device {HERE}: {path} is not there; `repro calibrate` measures this machine and "
            "writes it"
        )
    return path


def _warnings(asked: Asked, best: "Plan") -> list[str]:
    of_best = SimulateOptions(
        K=(best.devices,),
        M=(best.spec.M,),
        N=best.examples * best.spec.M,
        optimizer=asked.question.optimizer,
    )
    return warnings_of(of_best, asked.source)


def _save(path: Path, asked: Asked, plan: "Plan") -> None:
    from repro.harness.plan_file import PlanFile

    PlanFile(device=asked.device, predicted_s=plan.step_s, spec=plan.spec).save(path)


def _plain(asked: Asked, advice: "Advice", bar: "ErrorBar | None") -> dict[str, Any]:
    question, best = asked.question, advice.plans[0]

    def plain(plan: "Plan", why: str) -> dict[str, Any]:
        low, high = bar.ends(plan.step_s) if bar else (None, None)
        return {
            "method": _method(plan),
            **{name: getattr(plan.spec, name) for name in ("schedule", "K", "D", "M")},
            "stages_per_rank": plan.spec.stages_per_rank,
            "checkpoint": plan.spec.checkpoint,
            "balance": plan.spec.balance,
            "step_s": plan.step_s,
            "step_low_s": low,
            "step_high_s": high,
            "bubble": plan.bubble,
            "idle": plan.idle,
            "peak_bytes": plan.peak_bytes,
            "why_not": why,
        }

    return {
        "fidelity": "simulated",
        "memory_fidelity": "counted",
        "model": question.model,
        "model_args": dict(question.model_args),
        "on": asked.source.text,
        "devices": question.devices,
        "memory": question.memory,
        "batch": question.batch,
        "optimizer": question.optimizer,
        "error_factor": bar.factor if bar else None,
        "one_device_bytes": advice.alone_bytes,
        "simulated_plans": advice.examined,
        "plans": [plain(plan, _why(plan, best, asked)) for plan in advice.plans],
        "reference": advice.reference
        and plain(advice.reference, _why(advice.reference, best, asked)),
        "too_large": [plain(plan, _why(plan, best, asked)) for plan in advice.too_large],
        "hopeless": [plain(plan, _why(plan, best, asked)) for plan in advice.hopeless],
        "command": _command(best),
    }


def _answer(
    asked: Asked, advice: "Advice", bar: "ErrorBar | None", saved: Path | None
) -> list["RenderableType"]:
    from repro.costs.units import readable

    question = asked.question
    model = f"{question.model} ({assigned(question.model_args) or 'its defaults'})"
    on = f"{question.devices} x {asked.source.text}"
    if question.calibration is not None:
        on = f"{question.devices} devices, {asked.source.text}"
    head = (
        f"simulated: {model} on {on}\n"
        f"mini-batch N={question.batch}, optimizer {question.optimizer}; one device alone would "
        f"need {readable(advice.alone_bytes, asked.unit)} (counted; K=1, M=1, nothing recomputed) "
        f"and has {readable(question.memory, asked.unit)}\n"
    )
    parts = [head, _table(asked, advice, bar), f"\n{_legend(bar)}"]
    best = advice.plans[0]
    assert isinstance(best.spec.balance, tuple)
    cut = "+".join(map(str, best.spec.balance))
    parts.append(f"\nbest: {_method(best)}, layers {cut}; to measure it:\n  {_command(best)}")
    if saved is not None:
        parts.append(f"wrote {saved}; on such devices `repro run --plan {saved}` measures it")
    return parts


def _table(asked: Asked, advice: "Advice", bar: "ErrorBar | None") -> "RenderableType":
    """The ranked plans, the reference, and the fastest that do not fit."""
    best = advice.plans[0]
    ranked = [(str(rank), plan) for rank, plan in enumerate(advice.plans, 1)]
    if advice.reference is not None and advice.reference not in advice.plans:
        ranked.append(("ref", advice.reference))
    refused = [*advice.too_large[:_TOO_LARGE], *advice.hopeless[:_TOO_LARGE]]
    ranked += [("-", plan) for plan in refused]
    columns = (
        "",
        "method",
        "K",
        "D",
        "M",
        "recompute",
        "step (ms)",
        "low",
        "high",
        "bubble",
        "fullest",
        "why not",
    )
    rows = [_row(rank, plan, best, asked, bar) for rank, plan in ranked]
    return table_of(columns, rows, left=("", "method", "recompute", "why not"))


def _row(
    rank: str, plan: "Plan", best: "Plan", asked: Asked, bar: "ErrorBar | None"
) -> tuple[str, ...]:
    from repro.costs.units import readable

    low, high = ("-", "-")
    if bar is not None:
        low, high = (number(1e3 * end) for end in bar.ends(plan.step_s))
    return (
        rank,
        _method(plan),
        str(plan.spec.K),
        str(plan.spec.D),
        str(plan.spec.M),
        plan.spec.checkpoint,
        f"{1e3 * plan.step_s:,.1f}",
        low,
        high,
        f"{plan.bubble:.0%}",
        readable(max(plan.peak_bytes), asked.unit),
        _why(plan, best, asked),
    )


def _why(plan: "Plan", best: "Plan", asked: Asked) -> str:
    from repro.costs.units import in_unit
    from repro.harness.advise import why_slower

    if plan is best:
        return ""
    limit = asked.question.memory
    if max(plan.peak_bytes) > limit:
        needed = in_unit(max(plan.peak_bytes), asked.unit)
        allowed = in_unit(limit, asked.unit)
        holder = "stage" if plan.spec.stages_per_rank is None else "rank"
        return f"does not fit: {needed} of {allowed} on {holder} {plan.fullest}"
    return why_slower(plan, best)


def _method(plan: "Plan") -> str:
    from repro.methods.named import name_of

    spec = plan.spec
    return name_of(
        library="repro",
        schedule=spec.schedule,
        K=spec.K,
        D=spec.D,
        tensor_parallel=None,
        zero=None,
    )


def _legend(bar: "ErrorBar | None") -> str:
    lines = [
        "bubble: share of the step that equal stages with free messages would wait as well. "
        "fullest: tensors of the fullest device, counted; allocators take more"
    ]
    if bar is not None:
        error = (
            f"low, high: the step divided and multiplied by {bar.factor:.2f}; half of {bar.source} "
            "were predicted at least so well"
        )
        if bar.ratio is not None:
            error += f", and half of the ratios of two within {bar.ratio - 1:.0%}"
        lines.append(error)
    return "\n".join(lines)


def _command(plan: "Plan") -> str:
    spec = plan.spec
    values = {
        "model": spec.model,
        "K": (spec.K,),
        "M": (spec.M,),
        "D": spec.D,
        "batch": spec.N,
        "model_args": dict(spec.model_args) or _default(spec.model),
        "checkpoint": spec.checkpoint,
        "schedule": spec.schedule,
        "stages_per_rank": spec.stages_per_rank,
        "balance": spec.balance,
        "optimizer": spec.optimizer,
    }
    return f"repro run {catalog.find('sweep').command(values)}"


def _default(model: str) -> dict[str, Any] | None:
    """One argument of a model at its default; None if it has none.

    Without any argument a sweep would take a small model on a CPU.
    """
    from repro.models import parameters

    for name, parameter in parameters(model).items():
        if parameter.default is not parameter.empty:
            return {name: parameter.default}
    return None
