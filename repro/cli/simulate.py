"""`repro simulate`: a training step on devices that are not here, for several K and M, so that one can be chosen."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import parse_named
from repro.harness.catalog import pairs
from repro.harness.spec import Checkpoint, Link, Optimizer, RunSpec, ScheduleName
from repro.harness.terminal import show
from repro.io.redact import expanded

if TYPE_CHECKING:
    from repro.simulate import Calibration


@dataclasses.dataclass(frozen=True)
class SimulateOptions:
    """Steps of a model on K devices that are not here: no processes, a schedule and a cost model on a virtual clock.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own, import:package.module:function, which is
    code and is run. What layers take comes from a device's profile, or from `repro calibrate MODEL`; those of timed say
    it themselves. The last line names the fastest K and M that fit into the device's memory.
    """

    model: str = ""
    """the model, where it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""
    device: str | None = None
    """such as v100 (a wrong name lists all), or the path of a .json, which `repro calibrate` writes"""
    calibration: Path | None = None
    """instead of a device: the file of `repro calibrate MODEL`, whose model and arguments it has"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """run the code that --calibration names: needed where its model is import:package.module:function"""
    K: tuple[int, ...] = (4,)
    """stages, one a device, several values"""
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
    """whose update and state count; of a calibration only the state"""
    link_gbps: float | None = None
    """10^9 bits per second between neighbouring stages, instead of the device's own link"""
    link_latency_us: float = 0.0
    """with --link-gbps: microseconds of each message"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds and bytes"""


@dataclasses.dataclass(frozen=True)
class Source:
    """What is simulated and where its seconds come from.

    Attributes:
        model: its name.
        model_args: its arguments.
        layers: L.
        words: for people, where the seconds come from.
        memory: bytes of a device, where they are known.
        profile: of the device, if it is one.
        calibration: what layers took, if they were timed.
        timed_on: of a calibration, how many processes computed at once.
    """

    model: str
    model_args: dict[str, Any]
    layers: int
    words: str
    memory: int | None = None
    profile: str | None = None
    calibration: "Calibration | None" = None
    timed_on: int | None = None


def main(arguments: list[str]) -> int:
    """The verb."""
    hint = "try `repro simulate transformer --device v100`"
    options = parse_named(SimulateOptions, arguments, "simulate", "model", hint, needed=False)
    for name, values in (("K", options.K), ("M", options.M)):
        if not values:
            raise ValueError(f"--{name}: allowed is one number or more; try --{name} 1 4")
    source = _source(options, options.model)
    points = _points(options, source)
    for told in _warnings(options, source):
        print(f"warning: {told}", file=sys.stderr)
    if options.json:
        print(json.dumps(_plain(options, source, points)))
    else:
        from repro.cli.forecast import story

        show(story(options, source, points))
    return 0


def _source(options: SimulateOptions, model: str) -> Source:
    """Where the seconds come from; a ValueError of one line where that is not said, or said twice."""
    if options.device is not None and options.calibration is not None:
        raise ValueError("--device, --calibration: both are given, needed is one; leave one out")
    args = pairs("model_args", options.model_args)
    if options.calibration is not None:
        return _calibrated(options.calibration, model, args, trusted=options.trust)
    if not model:
        raise ValueError("model: name one; try `repro simulate transformer --device v100`")
    from repro.costs import device
    from repro.harness.tasks.emulate import waits
    from repro.models import build

    built = build(model, **expanded(args))
    if waits(built):
        if options.device is not None:
            raise ValueError(
                f"--device {options.device}: the layers of {model} say themselves what they take; leave it out"
            )
        return Source(model, args, len(built.layers), "layers that wait as long as they say")
    if options.device is None:
        raise ValueError(
            "--device, --calibration: neither is given, needed is one: try --device v100, or make a file with "
            "`repro calibrate MODEL`"
        )
    found = device.load(expanded(options.device))
    return Source(model, args, len(built.layers), f"{found.title}, {found.precision}", found.memory, options.device)


def _calibrated(path: Path, model: str, args: dict[str, Any], *, trusted: bool) -> Source:
    """A file of `repro calibrate`: it names its model, which may be named again but not differently.

    Where the model is code it is asked for, also if the user has named it again: the arguments are the file's.
    """
    from repro.harness.outside import LARGE, consent, read
    from repro.harness.schema import CalibrationFile
    from repro.simulate import Calibration

    try:
        file = read(Path(expanded(str(path))), CalibrationFile, LARGE)
    except ValueError as error:
        raise ValueError(f"--calibration {error}") from None
    for name, given, own in (("model", model, file.model), ("model_args", args, file.model_args)):
        if given and given != own:
            raise ValueError(f"{name} = {given!r}: {path} is a calibration of {own!r}; leave it out")
    if notice := consent(f"--calibration {path}", file.model, trusted=trusted):
        print(notice, file=sys.stderr)
    calibration = Calibration.from_plain(file.calibration.model_dump())
    how = "" if calibration.alone is None else " and in turn"
    words = f"layers timed on {file.date}, all processes at once{how}: {file.device}"
    layers = len(calibration.update)
    return Source(file.model, dict(file.model_args), layers, words, calibration=calibration, timed_on=file.K)


def _warnings(options: SimulateOptions, source: Source) -> list[str]:
    """What is simulated though it was timed otherwise, one line each."""
    timed, told = source.timed_on, []
    if timed is None:
        return told
    others = [K for K in dict.fromkeys(options.K) if K not in (1, timed)]  # alone it was timed as well
    if others:
        stages = ", ".join(map(str, others))
        how = "more" if min(others) > timed else "fewer" if max(others) < timed else "another number"
        told.append(
            f"layers were timed with K={timed} processes at once; with K={stages} {how} would share the memory "
            f"bandwidth: `repro calibrate {source.model} --K {others[0]}` times that"
        )
    calibration = source.calibration
    odd = [M for M in options.M if calibration and not calibration.covers(options.N // M)]
    if odd and calibration:
        told.append(
            f"layers were timed for micro-batches of {calibration.sizes[0]} to {calibration.sizes[-1]} examples; with "
            f"N={options.N}, M={', '.join(map(str, odd))} is beyond that and a guess: calibrate with another --N"
        )
    if options.optimizer != "sgd":
        told.append(f"updates were timed with sgd; of {options.optimizer} only the memory of its state counts here")
    return told


def _spec(options: SimulateOptions, source: Source, K: int, M: int) -> RunSpec:
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


def _check_link(options: SimulateOptions) -> None:
    gbps, latency = options.link_gbps, options.link_latency_us
    if gbps is not None and not 1e-6 <= gbps <= 1e6:
        raise ValueError(f"--link-gbps {gbps:g}: allowed is a number from 1e-06 to 1e+06; try --link-gbps 100")
    if not 0 <= latency <= 1e6:
        raise ValueError(f"--link-latency-us {latency:g}: allowed is a number from 0 to 1e+06; try 10")
    if gbps is None and latency:
        raise ValueError(f"--link-latency-us {latency:g}: needs --link-gbps; give both")


def _points(options: SimulateOptions, source: Source) -> list[dict[str, Any]]:
    """Every K and M; that all of them can be is known before the first is simulated."""
    from repro.harness.tasks.emulate import simulated

    _check_link(options)
    Ms = list(dict.fromkeys(options.M))
    specs = [_spec(options, source, K, M) for K in dict.fromkeys(options.K) for M in Ms]
    for spec in specs:
        spec.fit(source.layers)
    alone = {M: simulated(_spec(options, source, 1, M), "cpu", source.calibration)["metrics"] for M in Ms}
    points = [_point(spec, simulated(spec, "cpu", source.calibration), alone[spec.M]) for spec in specs]
    for point in points:
        point["speedup_vs_first"] = points[0]["step_s"] / point["step_s"]
    return points


def _point(spec: RunSpec, found: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """One K and M beside the same M on one stage: seconds, bytes, and the spans."""
    line = found["metrics"]
    (step,) = line["step_s"]
    if not step:
        raise ValueError(f"K={spec.K}, M={spec.M}: its layers take no time at all; give them some")
    return {
        "K": spec.K,
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
