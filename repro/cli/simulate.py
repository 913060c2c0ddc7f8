"""`repro simulate`: a training step on other devices, for several K and M to choose from."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from repro.cli.options import parse_named
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.catalog import pairs
from repro.harness.spec import (
    Checkpoint,
    Optimizer,
    Partitioner,
    RunSpec,
    ScheduleName,
    assigned,
)
from repro.harness.terminal import show, table_of
from repro.harness.text import size
from repro.io.redact import expanded

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.harness.job import Measured
    from repro.harness.schema import RoundRecord
    from repro.simulate import Calibration


_MOST_DRAWN = 16  # ranks of a step that is drawn
_SHORTER = "imbalance below 0: there the unequal cut shortens the wait"
_NO_ADVICE = (
    "no K and M is recommended: these layers take the same time for a micro-batch of one example "
    "as for one of all N, so each further micro-batch only makes the step longer"
)
_SMALL = 5e-4  # a share of the step that would be printed as 0.0 %


@dataclasses.dataclass(frozen=True)
class SimulateOptions:
    """Simulate a training step on K devices, for several K and M.

    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run. Layer times come from a device's
    profile or from `repro calibrate MODEL`; the layers of the model timed have fixed ones. The last
    line names the fastest K and M that fit into the device's memory.
    """

    model: str = ""
    """the model, if it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""
    device: str | None = None
    """such as v100 (a wrong name lists all), or a .json file that `repro calibrate` wrote"""
    calibration: Path | None = None
    """instead of a device: a file of `repro calibrate MODEL`, which names model and arguments"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """allow --calibration to name code: its model is import:package.module:function"""
    K: tuple[int, ...] = (4,)
    """numbers of devices, which hold one stage each, or --stages-per-rank of them"""
    M: tuple[int, ...] = (1, 4, 32)
    """numbers of micro-batches"""
    N: int = 128
    """mini-batch"""
    checkpoint: Checkpoint = "always"
    """which micro-batches are recomputed"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    stages_per_rank: int | None = None
    """stages of each device; at least 2 for the schedule interleaved-1f1b, otherwise left out"""
    balance: Literal["time", "flops", "parameters", "uniform"] = "time"
    """what stages are cut by"""
    partitioner: Partitioner | None = None
    """rule of the cut: the paper's or Lingvo's; by default the smallest largest stage"""
    optimizer: Optimizer = "sgd"
    """adds its update and its state; with a calibration only the state"""
    link_gbps: float | None = None
    """10^9 bits per second between neighbouring stages, instead of the device's own link"""
    link_latency_us: float = 0.0
    """with --link-gbps: microseconds of each message"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds and bytes"""


@dataclasses.dataclass(frozen=True)
class Source:
    """The model and the source of its layer times.

    Attributes:
        model: its name.
        model_args: its arguments.
        layers: L.
        text: the source of the times, for the user.
        memory: bytes of a device, if known.
        profile: of the device, if there is one.
        calibration: measured layer times, if there are any.
        timed_on: of a calibration, the number of processes that computed at once.
        waits: whether a layer takes the same time for every micro-batch, whatever its size.
    """

    model: str
    model_args: dict[str, Any]
    layers: int
    text: str
    memory: int | None = None
    profile: str | None = None
    calibration: "Calibration | None" = None
    timed_on: int | None = None
    waits: bool = False


def main(arguments: list[str]) -> int:
    hint = "try `repro simulate transformer --device v100`"
    options = parse_named(SimulateOptions, arguments, "simulate", "model", hint, needed=False)
    for name, values in (("K", options.K), ("M", options.M)):
        if not values:
            raise ValueError(f"--{name}: allowed is one number or more; try --{name} 1 4")
    source = source_of(options)
    points = _points(options, source)
    for line in warnings_of(options, source):
        print(f"warning: {line}", file=sys.stderr)
    if options.json:
        print(json.dumps(_plain(options, source, points)))
    else:
        show(answer(options, source, points))
    return 0


def source_of(options: SimulateOptions) -> Source:
    """The source of the layer times; a one-line ValueError unless exactly one is given."""
    if options.device is not None and options.calibration is not None:
        raise ValueError("--device, --calibration: both are given, needed is one; leave one out")
    model = options.model
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
                f"--device {options.device}: the layers of {model} have fixed times; leave it out"
            )
        return Source(model, args, len(built.layers), "layers with fixed times", waits=True)
    if options.device is None:
        raise ValueError(
            "--device, --calibration: give one of the two: try --device v100, or make "
            "a file with `repro calibrate MODEL`"
        )
    profile = device.load(expanded(options.device))
    return Source(
        model,
        args,
        len(built.layers),
        f"{profile.title}, {profile.precision}",
        int(profile.memory.value),
        options.device,
    )


def _calibrated(path: Path, model: str, args: dict[str, Any], *, trusted: bool) -> Source:
    """The layer times in a file of `repro calibrate MODEL`.

    The file names its model and arguments; the user may name the same. A model that is code needs
    --trust even if the user names it, since the arguments are the file's.
    """
    from repro.harness.outside import consent, read
    from repro.harness.schema import CalibrationFile
    from repro.io.untrusted import LARGE

    try:
        file = read(Path(expanded(str(path))), CalibrationFile, LARGE)
    except ValueError as error:
        raise ValueError(f"--calibration {error}") from None
    if model and model != file.model:
        raise ValueError(
            f"model = {model!r}: {path} is a calibration of {file.model!r}; leave it out"
        )
    if args and args != file.model_args:
        raise ValueError(
            f"model_args = {args!r}: {path} is a calibration of {file.model_args!r}; leave it out"
        )
    notice = consent(f"--calibration {path}", file.model, trusted=trusted)
    if notice:
        print(notice, file=sys.stderr)
    calibration = file.calibration
    how = "" if calibration.alone is None else " and in turn"
    return Source(
        file.model,
        dict(file.model_args),
        layers=len(calibration.update),
        text=f"layers timed on {file.date}, all processes at once{how}: {file.device}",
        calibration=calibration,
        timed_on=file.K,
    )


def warnings_of(options: SimulateOptions, source: Source) -> list[str]:
    timed, calibration = source.timed_on, source.calibration
    if timed is None or calibration is None:
        return []
    lines = []
    # One process alone was timed as well.
    others = [K for K in dict.fromkeys(options.K) if K not in (1, timed)]
    if others:
        number = "another number"
        if min(others) > timed:
            number = "more"
        elif max(others) < timed:
            number = "fewer"
        lines.append(
            f"layers were timed with K={timed} processes at once; with K="
            f"{', '.join(map(str, others))} {number} would share the memory bandwidth: "
            f"`repro calibrate {source.model} --K {others[0]}` times that"
        )
    outside = [str(M) for M in options.M if not calibration.covers(options.N // M)]
    if outside:
        lines.append(
            f"layers were timed for micro-batches of {calibration.sizes[0]} to "
            f"{calibration.sizes[-1]} examples; with N={options.N}, M={', '.join(outside)} is "
            "extrapolated: calibrate with another --N"
        )
    if options.optimizer != "sgd":
        lines.append(
            f"updates were timed with sgd; of {options.optimizer} only the memory of its state "
            "counts here"
        )
    return lines


def _spec(options: SimulateOptions, source: Source, K: int, M: int) -> RunSpec:
    return RunSpec(
        model=source.model,
        model_args=source.model_args,
        K=K,
        M=M,
        N=options.N,
        schedule=options.schedule,
        stages_per_rank=options.stages_per_rank,
        checkpoint=options.checkpoint,
        balance=options.balance,
        partitioner=options.partitioner,
        optimizer=options.optimizer,
        fidelity="simulated",
        profile=source.profile,
        link=link_of(options.link_gbps, options.link_latency_us),
    )


def link_of(gbps: float | None, latency: float) -> LinkSpeed | None:
    """The link that the user gives; None for the device's own.

    Args:
        gbps: 10^9 bits per second.
        latency: microseconds of each message.

    Raises:
        ValueError: one line: a number is out of range, or the first is missing.
    """
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
    if gbps is None:
        return None
    return LinkSpeed(latency=1e-6 * latency, bytes_per_second=1e9 / 8 * gbps)


def _points(options: SimulateOptions, source: Source) -> list["Point"]:
    """Simulate every K and M; all are checked before the first is simulated."""
    from repro.harness.tasks.simulate import simulated

    Ms = list(dict.fromkeys(options.M))
    specs = [_spec(options, source, K, M) for K in dict.fromkeys(options.K) for M in Ms]
    for spec in specs:
        spec.fit(source.layers)

    def simulate(spec: RunSpec) -> "Measured":
        return simulated(spec, "cpu", source.calibration)

    one_stage = {M: simulate(_spec(options, source, 1, M)).record for M in Ms}
    points: list[Point] = []
    for spec in specs:
        first = points[0] if points else None
        points.append(_point(spec, simulate(spec), one_stage[spec.M], first))
    return points


@dataclasses.dataclass(frozen=True)
class Point:
    """The simulated step of one K and M, with its ratios to K=1 and to the first point."""

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


def _point(
    spec: RunSpec, measured: "Measured", one_stage: "RoundRecord", first: Point | None
) -> Point:
    from repro.gpipe import breakdown
    from repro.harness.schema import TrainRound

    record = measured.record
    assert isinstance(record, TrainRound)
    assert isinstance(one_stage, TrainRound)
    assert measured.timeline is not None
    (step,) = record.step_s
    schedule = spec.make_schedule()
    return Point(
        K=spec.K,
        M=spec.M,
        step_s=step,
        throughput=spec.N / step,
        unit=record.unit,
        speedup_vs_k1=one_stage.step_s[0] / step,
        bubble_idle_over_total=measured.timeline.bubble_over_total,
        breakdown=breakdown(measured.timeline, schedule),
        peak_bytes=record.peak_bytes,
        peak_bytes_k1=one_stage.peak_bytes,
        balance=record.balance,
        timeline=measured.timeline,
        speedup_vs_first=first.step_s / step if first else 1.0,
    )


def _plain(options: SimulateOptions, source: Source, points: list[Point]) -> dict[str, Any]:
    return {
        "fidelity": "simulated",
        "model": source.model,
        "model_args": source.model_args,
        "on": source.text,
        "memory": source.memory,
        **{
            name: getattr(options, name)
            for name in (
                "K",
                "N",
                "schedule",
                "stages_per_rank",
                "checkpoint",
                "balance",
                "partitioner",
                "optimizer",
            )
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


def answer(options: SimulateOptions, source: Source, points: list[Point]) -> list["RenderableType"]:
    """The answer for the terminal: times, shares of the step, one step drawn, advice."""
    first = points[0]
    drawn = first if source.waits else best(points, source.memory)
    link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
    model = f"{source.model} ({assigned(source.model_args) or 'its defaults'})"
    held = f" with {options.stages_per_rank} stages a device" if options.stages_per_rank else ""
    head = (
        f"simulated: {model} on {source.text}{link}\n"
        f"N={options.N}, schedule {options.schedule}{held}, re-materialization "
        f"{options.checkpoint}, cut by {options.balance} "
        f"({options.partitioner or 'smallest-largest'}), optimizer {options.optimizer}\n"
    )
    if drawn.timeline.busy(kinds="IW"):
        head += "I and W take half of a backward each, assumed: layers are timed with whole ones\n"
    kinds = [
        kind
        for kind in first.breakdown
        if any(abs(point.breakdown[kind]) > _SMALL for point in points)
    ]
    shares = [
        (str(point.K), str(point.M), *(f"{point.breakdown[kind]:.1%}" for kind in kinds))
        for point in points
    ]
    parts = [
        head,
        _steps(source, points),
        _legend(source),
        "\nshares of K x step, simulated; idle is bubble (which equal stages would have as well), "
        "imbalance and transfer",
        table_of(("K", "M", *kinds), shares, ()),
    ]
    if any(point.breakdown["imbalance"] < -_SMALL for point in points):
        parts.append(_SHORTER)
    parts += _drawn(drawn.timeline, drawn.M)
    parts.append(f"\n{_NO_ADVICE if source.waits else advice(points, source.memory)}")
    return parts


def best(points: list[Point], limit: int | None) -> Point:
    """The fastest point that fits, or the one with the smallest peak if none fits.

    Args:
        points: to choose from.
        limit: bytes of a device; None if unknown.
    """
    fitting = [point for point in points if not _exceeds(point.peak_bytes, limit)]
    if not fitting:
        return min(points, key=lambda point: max(point.peak_bytes or (0,)))
    return min(fitting, key=lambda point: (point.step_s, point.K))


def advice(points: list[Point], limit: int | None) -> str:
    """One line about the best point; arguments as of `best`."""
    chosen = best(points, limit)
    if limit is not None and _exceeds(chosen.peak_bytes, limit):
        return (
            f"none of these fits into the device's {size(limit)}: the leanest, "
            f"K={chosen.K}, M={chosen.M}, takes {size(max(chosen.peak_bytes or (0,)))} on its "
            "fullest stage; try a larger K or M, or a smaller N"
        )
    all_fit = not any(_exceeds(point.peak_bytes, limit) for point in points)
    which = "fastest" if all_fit else "fastest that fits"
    if chosen.peak_bytes is None:
        peak = "its peak is not known"
    else:
        device = "the device's memory is not known"
        if limit is not None:
            device = f"the device has {size(limit)}"
        peak = f"peak {size(max(chosen.peak_bytes))} on the fullest stage ({device})"
    base = ", which would not fit" if _exceeds(chosen.peak_bytes_k1, limit) else ""
    return (
        f"{which}: K={chosen.K}, M={chosen.M}, {chosen.throughput:,.1f} {chosen.unit}, "
        f"{chosen.speedup_vs_k1:.2f}x over K=1 at the same M and N{base}; {peak}"
    )


def _steps(source: Source, points: list[Point]) -> "RenderableType":
    first = points[0]
    over = f"over K={first.K}, M={first.M}"
    columns = ("K", "M", "step (ms)", first.unit, "over K=1", over, "idle", "peak", "K=1 peak")
    rows = [
        (
            str(point.K),
            str(point.M),
            f"{1e3 * point.step_s:,.2f}",
            f"{point.throughput:,.1f}",
            f"{point.speedup_vs_k1:.2f}x",
            f"{point.speedup_vs_first:.2f}x",
            f"{point.bubble_idle_over_total:.1%}",
            _peak(point.peak_bytes, source.memory),
            _peak(point.peak_bytes_k1, source.memory),
        )
        for point in points
    ]
    return table_of(columns, rows, ())


def _legend(source: Source) -> str:
    mark = f"; ! is more than the device's {size(source.memory)}" if source.memory else ""
    return (
        "over K=1: the step of one stage at the same M and N, with unlimited memory, over this "
        "one; idle: share of K x step\n"
        f"peak: tensors of the fullest stage, counted{mark}"
    )


def _drawn(timeline: "Timeline", M: int) -> list["RenderableType"]:
    """One step as a Gantt chart; nothing for many stages."""
    from repro.harness.progress import gantt, legend

    if timeline.ranks > _MOST_DRAWN:
        return []
    title = f"\nthe step at K={timeline.ranks}, M={M}: {legend(timeline)}"
    return [title, gantt(timeline, 72)]


def _exceeds(peaks: Sequence[float] | None, limit: int | None) -> bool:
    return peaks is not None and limit is not None and max(peaks) > limit


def _peak(peaks: Sequence[float] | None, limit: int | None) -> str:
    if not peaks:
        return "-"
    mark = "!" if _exceeds(peaks, limit) else ""
    return f"{size(max(peaks))}{mark}"
