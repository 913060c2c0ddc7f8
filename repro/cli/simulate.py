"""`repro simulate`: a training step on devices that are not here, for several K and M, so that one can be chosen."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import parse_named
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.catalog import pairs
from repro.harness.spec import Checkpoint, Link, Optimizer, RunSpec, ScheduleName, assigned
from repro.harness.terminal import memory, show, table_of
from repro.io.redact import expanded

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.job import Measured
    from repro.harness.schema import RoundRecord
    from repro.simulate import Calibration


_ROWS = 16  # stages of which a step is drawn
_SHORTER = "imbalance below 0: there the unequal cut shortens the wait"
_NO_ADVICE = (
    "no K and M is recommended: these layers take as long for a micro-batch of one example as for "
    "one of all N, so every micro-batch more only adds to the step"
)
_SMALL = 5e-4  # a share of the step that would be printed as 0.0 %


@dataclasses.dataclass(frozen=True)
class SimulateOptions:
    """Simulate a training step on K devices, for several K and M.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. What layers take comes from a device's
    profile, or from `repro calibrate MODEL`; those of timed say it themselves. The last line names
    the fastest K and M that fit into the device's memory.
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
        waits: whether its layers take the same time for every micro-batch, however many examples
            that has.
    """

    model: str
    model_args: dict[str, Any]
    layers: int
    words: str
    memory: int | None = None
    profile: str | None = None
    calibration: "Calibration | None" = None
    timed_on: int | None = None
    waits: bool = False


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
    from repro.harness.tasks.simulate import waits
    from repro.models import build

    built = build(model, **expanded(args))
    if waits(built):
        if options.device is not None:
            raise ValueError(
                f"--device {options.device}: the layers of {model} say themselves what they take; "
                "leave it out"
            )
        return Source(
            model, args, len(built.layers), "layers that wait as long as they say", waits=True
        )
    if options.device is None:
        raise ValueError(
            "--device, --calibration: neither is given, needed is one: try --device v100, or make "
            "a file with `repro calibrate MODEL`"
        )
    found = device.load(expanded(options.device))
    return Source(
        model,
        args,
        len(built.layers),
        f"{found.title}, {found.precision}",
        int(found.memory.value),
        options.device,
    )


def _calibrated(path: Path, model: str, args: dict[str, Any], *, trusted: bool) -> Source:
    """A file of `repro calibrate`: it names its model, which may be named again but not differently.

    Where the model is code it is asked for, also if the user has named it again: the arguments are
    the file's.
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
            raise ValueError(
                f"{name} = {given!r}: {path} is a calibration of {own!r}; leave it out"
            )
    if notice := consent(f"--calibration {path}", file.model, trusted=trusted):
        print(notice, file=sys.stderr)
    calibration = Calibration.from_plain(file.calibration.model_dump())
    how = "" if calibration.alone is None else " and in turn"
    words = f"layers timed on {file.date}, all processes at once{how}: {file.device}"
    layers = len(calibration.update)
    return Source(
        file.model, dict(file.model_args), layers, words, calibration=calibration, timed_on=file.K
    )


def _warnings(options: SimulateOptions, source: Source) -> list[str]:
    """What is simulated though it was timed otherwise, one line each."""
    timed, told = source.timed_on, []
    if timed is None:
        return told
    # alone it was timed as well
    others = [K for K in dict.fromkeys(options.K) if K not in (1, timed)]
    if others:
        stages = ", ".join(map(str, others))
        how = (
            "more" if min(others) > timed else "fewer" if max(others) < timed else "another number"
        )
        told.append(
            f"layers were timed with K={timed} processes at once; with K={stages} {how} would "
            f"share the memory bandwidth: `repro calibrate {source.model} --K {others[0]}` times "
            "that"
        )
    calibration = source.calibration
    odd = [M for M in options.M if calibration and not calibration.covers(options.N // M)]
    if odd and calibration:
        told.append(
            f"layers were timed for micro-batches of {calibration.sizes[0]} to "
            f"{calibration.sizes[-1]} examples; with N={options.N}, M={', '.join(map(str, odd))} "
            "is beyond that and a guess: calibrate with another --N"
        )
    if options.optimizer != "sgd":
        told.append(
            f"updates were timed with sgd; of {options.optimizer} only the memory of its state "
            "counts here"
        )
    return told


def _spec(options: SimulateOptions, source: Source, K: int, M: int) -> RunSpec:
    link = None
    if options.link_gbps is not None:
        link = Link(
            latency=1e-6 * options.link_latency_us, bytes_per_second=1e9 / 8 * options.link_gbps
        )
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
        raise ValueError(
            f"--link-gbps {gbps:g}: allowed is a number from 1e-06 to 1e+06; try --link-gbps 100"
        )
    if not 0 <= latency <= 1e6:
        raise ValueError(
            f"--link-latency-us {latency:g}: allowed is a number from 0 to 1e+06; try 10"
        )
    if gbps is None and latency:
        raise ValueError(f"--link-latency-us {latency:g}: needs --link-gbps; give both")


def _points(options: SimulateOptions, source: Source) -> list["Point"]:
    """Every K and M; that all of them can be is known before the first is simulated."""
    from repro.harness.tasks.simulate import simulated

    _check_link(options)
    Ms = list(dict.fromkeys(options.M))
    specs = [_spec(options, source, K, M) for K in dict.fromkeys(options.K) for M in Ms]
    for spec in specs:
        spec.fit(source.layers)

    def simulate(spec: RunSpec) -> "Measured":
        return simulated(spec, "cpu", source.calibration)

    alone = {M: simulate(_spec(options, source, 1, M)).record for M in Ms}
    points: list[Point] = []
    for spec in specs:
        points.append(_point(spec, simulate(spec), alone[spec.M], points[0] if points else None))
    return points


@dataclasses.dataclass(frozen=True)
class Point:
    """One K and M beside the same M on one stage: seconds, bytes, and the spans."""

    K: int
    M: int
    step_s: float
    throughput: float
    unit: str
    speedup_vs_k1: float
    bubble_idle_over_total: float
    breakdown: dict[str, float]
    peak_bytes: Sequence[float] | None
    peak_bytes_k1: Sequence[float] | None
    balance: list[int]
    timeline: "Timeline"
    speedup_vs_first: float


def _point(spec: RunSpec, measured: "Measured", alone: "RoundRecord", first: Point | None) -> Point:
    from repro.gpipe import breakdown
    from repro.harness.schema import TrainRound

    record = measured.record
    assert isinstance(record, TrainRound)
    assert isinstance(alone, TrainRound)
    assert measured.timeline is not None
    (step,) = record.step_s
    schedule = spec.make_schedule()
    return Point(
        K=spec.K,
        M=spec.M,
        step_s=step,
        throughput=spec.N / step,
        unit=record.unit,
        speedup_vs_k1=alone.step_s[0] / step,
        bubble_idle_over_total=measured.timeline.bubble_over_total,
        breakdown=breakdown(measured.timeline, schedule),
        peak_bytes=record.peak_bytes,
        peak_bytes_k1=alone.peak_bytes,
        balance=record.balance,
        timeline=measured.timeline,
        speedup_vs_first=first.step_s / step if first else 1.0,
    )


def _plain(options: SimulateOptions, source: Source, points: list[Point]) -> dict[str, Any]:
    """The answer for programs."""
    return {
        "fidelity": "simulated",
        "model": source.model,
        "model_args": source.model_args,
        "on": source.words,
        "memory": source.memory,
        **{
            name: getattr(options, name)
            for name in ("K", "N", "schedule", "checkpoint", "balance", "optimizer")
        },
        "points": [
            {
                field.name: getattr(point, field.name)
                for field in dataclasses.fields(Point)
                if field.name != "timeline"
            }
            for point in points
        ],
    }


def story(options: SimulateOptions, source: Source, points: list[Point]) -> list["RenderableType"]:
    """The answer for people; `points` are those of the JSON, with their timelines."""
    first = points[0]
    drawn = points[0] if source.waits else best(points, source.memory)
    link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
    named = f"{source.model} ({assigned(source.model_args) or 'its defaults'})"
    head = (
        f"simulated: {named} on {source.words}{link}\n"
        f"N={options.N}, schedule {options.schedule}, re-materialization {options.checkpoint}, "
        f"cut by {options.balance}, optimizer {options.optimizer}\n"
    )
    kinds = [
        kind for kind in first.breakdown if any(abs(one.breakdown[kind]) > _SMALL for one in points)
    ]
    shares = [
        (str(one.K), str(one.M), *(f"{one.breakdown[kind]:.1%}" for kind in kinds))
        for one in points
    ]
    title = (
        "\nshares of K x step, simulated; idle is bubble (for which equal stages would wait as "
        "well), imbalance and transfer"
    )
    return [
        head,
        _steps(source, points),
        _reading(source),
        title,
        table_of(("K", "M", *kinds), shares, ()),
        *[_SHORTER] * any(one.breakdown["imbalance"] < -_SMALL for one in points),
        *_drawn(drawn.timeline, drawn.M),
        f"\n{_NO_ADVICE if source.waits else advice(points, source.memory)}",
    ]


def best(points: list[Point], most: int | None) -> Point:
    """The fastest of those that fit, where that is known; if none does, the leanest."""
    fitting = [one for one in points if not _beyond(one.peak_bytes, most)]
    if not fitting:
        return min(points, key=lambda one: max(one.peak_bytes or (0,)))
    return min(fitting, key=lambda one: (one.step_s, one.K))


def advice(points: list[Point], most: int | None) -> str:
    """One line: the fastest K and M, of those that fit where that is known; if none does, the leanest."""
    chosen = best(points, most)
    if _beyond(chosen.peak_bytes, most):
        return (
            f"none of these fits into the device's {memory(most or 0)}: the leanest, "
            f"K={chosen.K}, M={chosen.M}, takes {memory(max(chosen.peak_bytes or (0,)))} on its "
            "fullest stage; try a larger K or M, or a smaller N"
        )
    which = (
        "fastest that fits" if any(_beyond(one.peak_bytes, most) for one in points) else "fastest"
    )
    if chosen.peak_bytes is None:
        peak = "its peak is not known"
    else:
        room = (
            "the device's memory is not known" if most is None else f"the device has {memory(most)}"
        )
        peak = f"peak {memory(max(chosen.peak_bytes))} on the fullest stage ({room})"
    alone = ", which would not fit" if _beyond(chosen.peak_bytes_k1, most) else ""
    return (
        f"{which}: K={chosen.K}, M={chosen.M}, {chosen.throughput:,.1f} {chosen.unit}, "
        f"{chosen.speedup_vs_k1:.2f}x over K=1 at the same M and N{alone}; {peak}"
    )


def _steps(source: Source, points: list[Point]) -> "RenderableType":
    first = points[0]
    over = f"over K={first.K}, M={first.M}"
    columns = ("K", "M", "step (ms)", first.unit, "over K=1", over, "idle", "peak", "K=1 peak")
    rows = [
        (
            str(one.K),
            str(one.M),
            f"{1e3 * one.step_s:,.2f}",
            f"{one.throughput:,.1f}",
            f"{one.speedup_vs_k1:.2f}x",
            f"{one.speedup_vs_first:.2f}x",
            f"{one.bubble_idle_over_total:.1%}",
            _peak(one.peak_bytes, source.memory),
            _peak(one.peak_bytes_k1, source.memory),
        )
        for one in points
    ]
    return table_of(columns, rows, ())


def _reading(source: Source) -> str:
    """What the columns of the first table are."""
    much = f"; ! is more than the device's {memory(source.memory)}" if source.memory else ""
    return (
        "over K=1: the step of one stage at the same M and N, with as much memory as it takes, "
        f"over this one; idle: share of K x step\npeak: tensors of the fullest stage, counted{much}"
    )


def _drawn(timeline: "Timeline", M: int) -> list["RenderableType"]:
    """One step; of many stages nothing."""
    from repro.harness.progress import LEGEND, gantt

    if timeline.stages > _ROWS:
        return []
    title = f"\nthe step at K={timeline.stages}, M={M}: {LEGEND}"
    return [title, gantt(timeline, 72)]


def _beyond(peaks: Sequence[float] | None, most: int | None) -> bool:
    """Whether the fullest stage is known to take more than there is."""
    return peaks is not None and most is not None and max(peaks) > most


def _peak(peaks: Sequence[float] | None, most: int | None) -> str:
    return memory(max(peaks)) + "!" * _beyond(peaks, most) if peaks else "-"
