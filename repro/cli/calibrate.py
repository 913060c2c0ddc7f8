"""`repro calibrate`: measures this machine's device profile, or the layer times of a model."""

import dataclasses
import math
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from repro.cli.options import check_range, parse_named
from repro.harness import machine
from repro.harness.catalog import pairs
from repro.harness.spec import RunSpec, slug
from repro.harness.terminal import show, table_of
from repro.io.untrusted import open_regular

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.costs import Device
    from repro.costs.bench import Rates
    from repro.harness.schema import CalibrateRound


@dataclasses.dataclass(frozen=True)
class CalibrateOptions:
    """Measure this machine's rates, or a model's layer times, for `repro simulate`.

    Without a [MODEL], micro-benchmarks of about ten seconds make a device profile. With a [MODEL],
    its layers are timed in micro-batches of several sizes, on K processes at once and in turn.
    [MODEL] is transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run.
    """

    model: str = ""
    """the model, if it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=3"""
    K: int | None = None
    """processes at once, one thread each on the CPU; by default one per device, at least 2"""
    N: int = 192
    """of a model: examples in the largest timed micro-batch"""
    smallest: int = 3
    """of a model: examples in the smallest timed micro-batch; sizes double up to N"""
    output: Path | None = None
    """the .json file to write; by default in the machine's folder of --results"""
    results: Path = Path("results")
    """where measurements are recorded"""


class Place(NamedTuple):
    """Where it is measured: the machine, and K processes at once."""

    machine: machine.Machine
    K: int

    @property
    def text(self) -> str:
        devices = self.machine.count
        kind = "one thread each" if self.machine.device == "cpu" else f"{devices} GPUs"
        shared = f"; only {devices} devices, so they share them" if devices < self.K else ""
        return (
            f"{self.machine.kind}, K={self.K} processes at once, {kind}, float32, torch "
            f"{self.machine.torch}{shared}"
        )


def main(arguments: list[str]) -> int:
    hint = "try `repro calibrate transformer`"
    options = parse_named(CalibrateOptions, arguments, "calibrate", "model", hint, needed=False)
    devices = machine.detect("node" if machine.gpus() else "laptop")
    K = max(2, devices.count) if options.K is None else options.K
    if not 2 <= K <= 1024:
        raise ValueError(f"--K {K}: allowed is 2 to 1024, since a link has two ends; leave it out")
    if options.output is not None and options.output.suffix.lower() != ".json":
        raise ValueError(
            f"--output {options.output}: allowed is the path of a .json file; try "
            f"{options.output}.json"
        )
    place = Place(devices, K)
    answer = _layers(options, place) if options.model else _machine(options, place)
    if machine.torchrun_rank() in (None, 0):
        show(answer)
    return 0


def device_path(options: CalibrateOptions, place: Place) -> Path:
    return options.results / place.machine.slug / "device.json"


def _machine(options: CalibrateOptions, place: Place) -> list["RenderableType"]:
    from repro.costs import bench
    from repro.gpipe import launch

    path = _file_to_write(options.output or device_path(options, place))
    rates = launch(bench.run, place.machine.device, stages=place.K)
    device = profile(rates, place, _memory(place))
    if machine.torchrun_rank() in (None, 0):
        device.save(path)
    use = (
        f"wrote {path}; in a run's spec it is profile={str(path)!r}, and\n`repro simulate "
        f"transformer --device {path} --K {place.K}` simulates a step on such devices"
    )
    return [f"{place.text}\n", _rates(rates, device), f"\n{use}"]


def _file_to_write(path: Path) -> Path:
    """Make the folder of a file, and check that the file can be written, before measuring.

    Raises:
        ValueError: one line, if it cannot be written, or if a pipe or a device has this path.
    """
    if machine.torchrun_rank() not in (None, 0):  # only the first rank writes
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            open_regular(path).close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no regular file"
        raise ValueError(f"--output {path}: {reason}; choose another path") from None
    return path


def profile(rates: "list[Rates]", place: Place, memory: int) -> "Device":
    from repro.costs import bench

    source = f"`repro calibrate` on K={place.K} processes at once"
    return bench.profile(rates, place.machine.slug, place.text, source, memory)


def _memory(place: Place) -> int:
    """Bytes that one stage may take: those of its GPU, or its share of the host's."""
    from repro.cli import doctor

    facts = doctor.gather(Path())
    if place.machine.device == "cuda":
        stages_per_gpu = math.ceil(place.K / place.machine.count)
        return int(min(gpu.gib for gpu in facts.torch.devices) * doctor.GIB) // stages_per_gpu
    return int(facts.memory * doctor.GIB) // place.K


def _rates(rates: "list[Rates]", device: "Device") -> "RenderableType":
    """A table of the measured cases and of the values in the profile."""
    rows: list[tuple[str, str, str]] = []
    for title, table, unit, median in (
        ("matrices, convolutions", "matmul", "GFLOP/s", device.matmul_flops.value),
        ("other operators, elements", "other", "G/s", device.other_flops.value),
    ):
        for case in getattr(rates[0], table):
            value = fmean(getattr(rate, table)[case] for rate in rates)
            rows.append((f"  {case}", f"{value / 1e9:,.2f} {unit}", ""))
        rows.append((title, f"{median / 1e9:,.2f} {unit}", "median of the above"))
    link, gib = device.link, device.memory.value / 2**30
    rows += [
        (
            "memory bandwidth",
            f"{device.bytes_per_second.value / 1e9:,.2f} GB/s",
            "c = a + b beyond caches",
        ),
        ("launch of an operator", f"{1e6 * device.launch_s.value:,.2f} us", "x + x of one element"),
        (
            "link between stages",
            f"{link.bytes_per_second / 1e9:,.2f} GB/s",
            "there and back, 1 MiB",
        ),
        ("  latency", f"{1e6 * link.latency:,.1f} us", "the same, 4 KiB"),
        ("memory of a stage", f"{gib:,.1f} GiB", ""),
    ]
    return table_of(("what", "attained", "how"), rows, left=("what", "how"))


def _layers(options: CalibrateOptions, place: Place) -> list["RenderableType"]:
    """Time a model's layers and write the calibration; returns the answer for the terminal."""
    from repro.cli import layer_times
    from repro.gpipe import launch
    from repro.harness.rehearsal import check_model
    from repro.harness.schema import CalibrationFile

    model = options.model
    args = pairs("model_args", options.model_args)
    check_range("N", options.N, 2**20)
    check_range("smallest", options.smallest, options.N)
    M = options.N // options.smallest
    spec = RunSpec(
        model=model,
        model_args=args,
        K=place.K,
        M=M,
        N=M * options.smallest,
        balance="uniform",
        steps=2,
        task="calibrate",
    )
    check_model(spec)
    default_path = options.results / place.machine.slug / f"calibration-{slug(model)}.json"
    path = _file_to_write(options.output or default_path)
    record = launch(time_layers, spec.plain(), place.machine.device, stages=place.K)[0]
    file = CalibrationFile(
        model=model,
        model_args=args,
        K=place.K,
        device=place.text,
        date=date.today().isoformat(),
        unit=record.unit,
        calibration=record.calibration,
    )
    if machine.torchrun_rank() in (None, 0):
        path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    trust = " --trust" if model.startswith("import:") else ""  # the file names code
    command = f"repro simulate --calibration {path} --K {place.K}{trust}"
    use = f"wrote {path}; `{command}` simulates steps with these times"
    return [
        f"{place.text}\n",
        *layer_times.tables(spec, record, device_path(options, place)),
        f"\n{use}",
    ]


def time_layers(plain: dict[str, Any], kind: str) -> "CalibrateRound":
    import torch.distributed as dist

    from repro.harness.job import Job
    from repro.harness.schema import CalibrateRound
    from repro.harness.tasks import calibrate

    record = calibrate.run(Job(RunSpec(**plain), device=kind), dist.get_rank(), []).record
    assert isinstance(record, CalibrateRound)
    return record
