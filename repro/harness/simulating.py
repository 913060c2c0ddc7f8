"""`repro simulate`: a training step on devices that are not here, for several M, so that K and M can be chosen."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.harness.catalog import pairs
from repro.harness.flags import parse
from repro.harness.spec import Checkpoint, Link, Optimizer, RunSpec, ScheduleName, assigned

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.gpipe import Timeline
    from repro.simulate import Calibration

_ROWS = 16  # stages of which a step is drawn


@dataclasses.dataclass(frozen=True)
class SimulateOptions:
    """Steps of a model on K devices that are not here: no processes, a schedule and a cost model on a virtual clock.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own, import:package.module:function, which is
    code and is run. What layers take comes from a device's profile, or from `repro calibrate MODEL`.
    """

    model: str = ""
    """the model, where it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""
    device: str | None = None
    """such as v100 (a wrong name lists all), or the path of a .json, which `repro calibrate` writes"""
    calibration: Path | None = None
    """instead of a device: the file of `repro calibrate MODEL`, whose model and arguments it has"""
    K: int = 4
    """stages, one a device"""
    M: tuple[int, ...] = (1, 4, 32)
    """micro-batches, several values"""
    N: int = 128
    """mini-batch"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    balance: Literal["time", "parameters", "uniform"] = "time"
    """what the cut makes even"""
    optimizer: Optimizer = "sgd"
    """whose update and state count"""
    link_gbps: float | None = None
    """10^9 bits per second between neighbouring stages, instead of the device's own link"""
    link_latency_us: float = 0.0
    """with --link-gbps: microseconds of each message"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds and bytes"""


@dataclasses.dataclass(frozen=True)
class Source:
    """What is simulated and where its seconds come from."""

    model: str
    model_args: dict[str, Any]
    words: str
    memory: int | None = None  # bytes of a device
    profile: str | None = None
    calibration: "Calibration | None" = None


def main(arguments: list[str]) -> int:
    """The verb."""
    named = [arguments[0]] if arguments and not arguments[0].startswith("-") else []
    options = parse(SimulateOptions, arguments[len(named) :], " ".join(["repro simulate", *(named or ["[MODEL]"])]))
    if named and options.model:
        raise ValueError("model: name it once, first or with --model; try `repro simulate transformer --device v100`")
    source = _source(options, options.model or (named or [""])[0])
    specs = [_spec(options, source, options.K, M) for M in dict.fromkeys(options.M)]
    if not specs:
        raise ValueError("--M: allowed is one number or more; try --M 1 4 32")
    points = [_point(options, source, spec) for spec in specs]
    for point in points:
        point["speedup_vs_first"] = points[0]["step_s"] / point["step_s"]
    if options.json:
        print(json.dumps(_plain(options, source, points)))
        return 0
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for part in _story(options, source, points):
        console.print(part)
    return 0


def _source(options: SimulateOptions, model: str) -> Source:
    """Where the seconds come from; a ValueError of one line where that is not said, or said twice."""
    if (options.device is None) == (options.calibration is None):
        given = "both are given" if options.device else "neither is given"
        raise ValueError(
            f"--device, --calibration: {given}, needed is one: try --device v100, or make a file with "
            "`repro calibrate MODEL`"
        )
    args = pairs("model_args", options.model_args)
    if options.calibration is not None:
        return _calibrated(options.calibration, model, args)
    if not model:
        raise ValueError("model: name one; try `repro simulate transformer --device v100`")
    from repro.costs import device

    assert options.device is not None
    found = device.load(Path(options.device).expanduser() if options.device.startswith("~") else options.device)
    words = f"{found.title}, {found.precision}"
    return Source(model, args, words, found.memory, options.device)


def _calibrated(path: Path, model: str, args: dict[str, Any]) -> Source:
    """A file of `repro calibrate`: it names its model, which may be named again but not differently."""
    from repro.harness.formats import CalibrationFile
    from repro.harness.outside import LARGE, read
    from repro.simulate import Calibration

    try:
        file = read(path.expanduser(), CalibrationFile, LARGE)
    except ValueError as error:
        raise ValueError(f"--calibration {error}") from None
    for name, given, own in (("model", model, file.model), ("model_args", args, file.model_args)):
        if given and given != own:
            raise ValueError(f"{name} = {given!r}: {path} is a calibration of {own!r}; leave it out")
    calibration = Calibration.from_plain(file.calibration.model_dump())
    how = "" if calibration.alone is None else " and in turn"
    words = f"layers timed on {file.date}, all processes at once{how}: {file.device}"
    return Source(file.model, dict(file.model_args), words, calibration=calibration)


def _spec(options: SimulateOptions, source: Source, K: int, M: int) -> RunSpec:
    if options.link_gbps is not None and not 0 < options.link_gbps < 1e9:
        raise ValueError(f"--link-gbps {options.link_gbps:g}: allowed is more than 0; try 100")
    if options.link_gbps is None and options.link_latency_us:
        raise ValueError(f"--link-latency-us {options.link_latency_us:g}: needs --link-gbps; give both")
    link = None
    if options.link_gbps is not None:
        link = Link(latency=1e-6 * options.link_latency_us, bytes_per_second=1e9 / 8 * options.link_gbps)
    return RunSpec(
        model=source.model,
        model_args=source.model_args,
        K=K,
        M=M,
        N=options.N,
        schedule=options.schedule,
        checkpoint=options.checkpoint,
        balance=options.balance,
        optimizer=options.optimizer,
        fidelity="simulated",
        profile=source.profile,
        link=link,
    )


def _point(options: SimulateOptions, source: Source, spec: RunSpec) -> dict[str, Any]:
    """One M, and the same on one stage."""
    from repro.harness.modelled import simulated

    found = simulated(spec, "cpu", source.calibration)
    alone = simulated(_spec(options, source, 1, spec.M), "cpu", source.calibration)["metrics"]
    line = found["metrics"]
    (step,) = line["step_s"]
    return {
        "M": spec.M,
        "step_s": step,
        "throughput": spec.N / step,
        "unit": line["unit"],
        "speedup_vs_k1": alone["step_s"][0] / step,
        "bubble_idle_over_total": line["bubble_idle_over_total"][0],
        "breakdown": line["breakdown"],
        "peak_bytes": line["peak_bytes"],
        "peak_bytes_k1": alone["peak_bytes"],
        "balance": line["balance"],
        "timeline": found["timeline"],
    }


def _story(options: SimulateOptions, source: Source, points: list[dict[str, Any]]) -> list["RenderableType"]:
    """The answer for people."""
    from repro.gpipe import Timeline
    from repro.harness.calibrating import table_of

    first = points[0]
    link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
    named = f"{source.model} ({assigned(source.model_args) or 'its defaults'})"
    head = (
        f"simulated: {named} on {source.words}{link}\n"
        f"K={options.K}, N={options.N}, schedule {options.schedule}, re-materialization {options.checkpoint}, "
        f"cut by {options.balance}, {options.optimizer}\n"
    )
    columns = ("M", "step (ms)", first["unit"], "over K=1", f"over M={first['M']}", "bubble", "peak", "K=1 peak")
    rows = [
        (
            str(point["M"]),
            f"{1e3 * point['step_s']:,.2f}",
            f"{point['throughput']:,.1f}",
            f"{point['speedup_vs_k1']:.2f}x",
            f"{point['speedup_vs_first']:.2f}x",
            f"{point['bubble_idle_over_total']:.1%}",
            _memory(point["peak_bytes"], source.memory),
            _memory(point["peak_bytes_k1"], source.memory),
        )
        for point in points
    ]
    kinds = [kind for kind in first["breakdown"] if any(abs(point["breakdown"][kind]) > 5e-4 for point in points)]
    shares = [(str(point["M"]), *(f"{point['breakdown'][kind]:.1%}" for kind in kinds)) for point in points]
    parts: list[RenderableType] = [head, table_of(columns, rows, ()), _reading(source)]
    parts += [table_of(("M", *kinds), shares, (), "\nshares of K x step, simulated")]
    drawn = Timeline.from_rows(first["timeline"], options.K)
    return [*parts, *_drawn(drawn, first["M"])]


def _reading(source: Source) -> str:
    """What the columns of the first table are."""
    much = f"; ! is more than the device's {source.memory / 2**30:.1f} GiB" if source.memory else ""
    return (
        "over K=1: the step of one stage at the same M and N, with as much memory as it takes, over this one; bubble: "
        f"idle/total\npeak: tensors of the fullest stage, counted{much}"
    )


def _drawn(timeline: "Timeline", M: int) -> list["RenderableType"]:
    """The step of the first M; of many stages nothing."""
    from repro.harness.progress import gantt

    if timeline.stages > _ROWS:
        return []
    return [f"\nthe step at M={M}: F forward, R recompute, B backward, U update, . idle", gantt(timeline, 72)]


def _memory(peaks: list[int] | None, most: int | None) -> str:
    if not peaks:
        return "-"
    text = f"{max(peaks) / 2**30:.2f} GiB" if max(peaks) >= 2**30 else f"{max(peaks) / 2**20:.1f} MiB"
    return text + ("!" if most is not None and max(peaks) > most else "")


def _plain(options: SimulateOptions, source: Source, points: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer for programs."""
    return {
        "fidelity": "simulated",
        "model": source.model,
        "model_args": source.model_args,
        "on": source.words,
        "memory": source.memory,
        **{name: getattr(options, name) for name in ("K", "N", "schedule", "checkpoint", "balance", "optimizer")},
        "points": [{name: value for name, value in point.items() if name != "timeline"} for point in points],
    }
