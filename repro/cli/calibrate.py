"""`repro calibrate`: measures this machine's device profile, or the layer times of a model."""

import dataclasses
import math
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro
from annotated_types import Interval

from repro.cli.answers import rows
from repro.cli.options import parse_named
from repro.harness import machine
from repro.harness.catalog import pairs
from repro.harness.spec import RunSpec, slug
from repro.harness.terminal import show
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
    K: Annotated[int | None, Interval(ge=2, le=1024)] = None
    """processes at once, one thread each on the CPU; by default one per device, at least 2"""
    N: Annotated[int, Interval(ge=1, le=2**20)] = 192
    """of a model: examples in the largest timed micro-batch"""
    smallest: Annotated[int, Interval(ge=1, le=2**20)] = 3
    """of a model: examples in the smallest timed micro-batch; sizes double up to N"""
    output: Path | None = None
    """the .json file to write; by default in the machine's folder of --results"""
    results: Path = Path("results")
    """where measurements are recorded"""


class Origin(NamedTuple):
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
    if options.output is not None and options.output.suffix.lower() != ".json":
        raise ValueError(
            f"--output {options.output}: allowed is the path of a .json file; try "
            f"{options.output}.json"
        )
    devices = machine.detect("node" if machine.gpus() else "laptop")
    origin = Origin(devices, options.K or max(2, devices.count))
    folder = options.results / devices.slug
    answer = (_layers if options.model else _machine)(options, origin, folder)
    if machine.torchrun_rank() in (None, 0):
        show(answer)
    return 0


def _machine(options: CalibrateOptions, origin: Origin, folder: Path) -> list["RenderableType"]:
    from repro.costs import bench
    from repro.gpipe import launch

    path = _file_to_write(options.output or folder / "device.json")
    rates = launch(bench.run, origin.machine.device, stages=origin.K)
    device = profile(rates, origin, _memory(origin))
    if machine.torchrun_rank() in (None, 0):
        device.save(path)
    use = (
        f"wrote {path}; in a run's spec it is profile={str(path)!r}, and\n`repro simulate "
        f"transformer --device {path} --K {origin.K}` simulates a step on such devices"
    )
    return [f"{origin.text}\n", _rates(rates, device), f"\n{use}"]


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


def profile(rates: "list[Rates]", origin: Origin, memory: int) -> "Device":
    from repro.costs import bench

    source = f"`repro calibrate` on K={origin.K} processes at once"
    return bench.profile(rates, origin.machine.slug, origin.text, source, memory)


def _memory(origin: Origin) -> int:
    """Bytes that one stage may take: those of its GPU, or its share of the host's."""
    from repro.cli import doctor

    if origin.machine.device == "cuda":
        stages_per_gpu = math.ceil(origin.K / origin.machine.count)
        return int(machine.gpu_memory()) // stages_per_gpu
    return int(doctor.memory()[0]) // origin.K


def _rates(rates: "list[Rates]", device: "Device") -> "RenderableType":
    """A table of the measured cases and of the values in the profile."""
    lines: list[tuple[str, str, str]] = []
    for title, table, unit, median in (
        ("matrices, convolutions", "matmul", "GFLOP/s", device.matmul_flops.value),
        ("other operators, elements", "other", "G/s", device.other_flops.value),
    ):
        for case in getattr(rates[0], table):
            value = fmean(getattr(rate, table)[case] for rate in rates)
            lines.append((f"  {case}", f"{value / 1e9:,.2f} {unit}", ""))
        lines.append((title, f"{median / 1e9:,.2f} {unit}", "median of the above"))
    link, launch_us = device.link, 1e6 * device.launch_s.value
    bandwidth, speed = device.bytes_per_second.value / 1e9, link.bytes_per_second / 1e9
    lines += [
        ("memory bandwidth", f"{bandwidth:,.2f} GB/s", "c = a + b beyond caches"),
        ("launch of an operator", f"{launch_us:,.2f} us", "x + x of one element"),
        ("link between stages", f"{speed:,.2f} GB/s", "there and back, 1 MiB"),
        ("  latency", f"{1e6 * link.latency:,.1f} us", "the same, 4 KiB"),
        ("memory of a stage", f"{device.memory.value / 2**30:,.1f} GiB", ""),
    ]
    columns = {
        "what": lambda line: line[0],
        "attained": lambda line: line[1],
        "how": lambda line: line[2],
    }
    return rows(lines, columns, left=("what", "how"))


def _layers(options: CalibrateOptions, origin: Origin, folder: Path) -> list["RenderableType"]:
    """Time a model's layers and write the calibration; returns the answer for the terminal."""
    from repro.cli import layer_times
    from repro.gpipe import launch
    from repro.harness.rehearsal import check_model
    from repro.harness.schema import CalibrationFile

    if options.smallest > options.N:
        raise ValueError(f"--smallest {options.smallest}: allowed is 1 to {options.N}")
    model, args = options.model, pairs("model_args", options.model_args)
    M = options.N // options.smallest
    spec = RunSpec(
        model=model,
        model_args=args,
        K=origin.K,
        M=M,
        N=M * options.smallest,
        balance="uniform",
        steps=2,
        task="calibrate",
    )
    check_model(spec)
    path = _file_to_write(options.output or folder / f"calibration-{slug(model)}.json")
    record = launch(time_layers, spec.plain(), origin.machine.device, stages=origin.K)[0]
    file = CalibrationFile(
        model=model,
        model_args=args,
        K=origin.K,
        device=origin.text,
        date=date.today().isoformat(),
        unit=record.unit,
        calibration=record.calibration,
    )
    if machine.torchrun_rank() in (None, 0):
        path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    trust = " --trust" if model.startswith("import:") else ""  # the file names code
    command = f"repro simulate --calibration {path} --K {origin.K}{trust}"
    use = f"wrote {path}; `{command}` simulates steps with these times"
    tables = layer_times.tables(spec, record, folder / "device.json")
    return [f"{origin.text}\n", *tables, f"\n{use}"]


def time_layers(plain: dict[str, Any], kind: str) -> "CalibrateRound":
    import torch.distributed as dist

    from repro.harness.job import Job
    from repro.harness.schema import CalibrateRound
    from repro.harness.tasks import calibrate

    record = calibrate.run(Job(RunSpec(**plain), device=kind), dist.get_rank(), []).record
    assert isinstance(record, CalibrateRound)
    return record
