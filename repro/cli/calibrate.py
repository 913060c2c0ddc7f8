"""`repro calibrate`: this machine as a device's profile, or what the layers of a model take on it."""

import dataclasses
import json
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from repro.cli.options import parse_named
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

    Without a [MODEL] micro-benchmarks, about ten seconds, make a device profile. With one its
    layers are timed, on K processes at once and in turn, in micro-batches of several sizes:
    transformer, amoebanet-d, timm:NAME, or a function of your own, import:package.module:function,
    which is code and is run.
    """

    model: str = ""
    """the model, where it is not named first"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=3"""
    K: int | None = None
    """processes at once, one thread each on the CPU; by default as many as devices, at least 2"""
    N: int = 192
    """of a model: examples of the largest micro-batch that is timed"""
    smallest: int = 3
    """of a model: examples of the smallest; up to N they double"""
    output: Path | None = None
    """the file to write, .json; by default in the machine's folder of --results"""
    results: Path = Path("results")
    """where measurements are recorded"""


class Here(NamedTuple):
    """Where is measured: the machine, on how many processes at once."""

    machine: machine.Machine
    K: int

    @property
    def words(self) -> str:
        """For people."""
        kind = "one thread each" if self.machine.device == "cpu" else f"{self.machine.count} GPUs"
        short = (
            f"; only {self.machine.count} devices, so they share them"
            if self.machine.count < self.K
            else ""
        )
        return (
            f"{self.machine.kind}, K={self.K} processes at once, {kind}, float32, torch "
            f"{self.machine.torch}{short}"
        )


def main(arguments: list[str]) -> int:
    """The verb."""
    hint = "try `repro calibrate transformer`"
    options = parse_named(CalibrateOptions, arguments, "calibrate", "model", hint, needed=False)
    found = machine.detect("node" if machine.gpus() else "laptop")
    K = max(2, found.count) if options.K is None else options.K
    if not 2 <= K <= 1024:
        raise ValueError(f"--K {K}: allowed is 2 to 1024, since a link has two ends; leave it out")
    if options.output is not None and options.output.suffix.lower() != ".json":
        raise ValueError(
            f"--output {options.output}: allowed is the path of a .json file; try "
            f"{options.output}.json"
        )
    here = Here(found, K)
    shown = _layers(options, options.model, here) if options.model else _machine(options, here)
    if machine.torchrun_rank() in (None, 0):
        show(shown)
    return 0


def device_path(options: CalibrateOptions, here: Here) -> Path:
    """Where this machine's profile is written."""
    return options.results / here.machine.slug / "device.json"


def _machine(options: CalibrateOptions, here: Here) -> list["RenderableType"]:
    """Measure and write the profile; what to say."""
    from repro.costs import bench
    from repro.gpipe import launch

    path = _file_to_write(options.output or device_path(options, here))
    rates = launch(bench.run, here.machine.device, stages=here.K)
    device = profile(rates, here, _memory(here))
    if machine.torchrun_rank() in (None, 0):
        device.save(path)
    use = (
        f"wrote {path}; in a run's spec it is profile={str(path)!r}, and\n`repro simulate "
        f"transformer --device {path} --K {here.K}` simulates a step on such devices"
    )
    return [f"{here.words}\n", _rates(rates, device), f"\n{use}"]


def _file_to_write(path: Path) -> Path:
    """The path of a file that will be written, with its folder made.

    Raises a ValueError (one line), before anything is measured, where it could not be written, or
    where a pipe or a device stands in its place.
    """
    if machine.torchrun_rank() not in (None, 0):  # the first rank writes
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            open_regular(path).close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no regular file"
        raise ValueError(f"--output {path}: {reason}; choose another path") from None
    return path


def profile(rates: "list[Rates]", here: Here, memory: int) -> "Device":
    """The processes' rates as one device: their means, the slowest link."""
    from repro.costs import Device

    mean = {
        name: fmean(getattr(one, name) for one in rates) for name in ("matmul_flops", "other_flops")
    }
    cases = (
        f"matmul: median of {', '.join(rates[0].matmul)}; other: median of "
        f"{', '.join(rates[0].other)}"
    )
    return Device.measured(
        here.machine.slug,
        title=here.words,
        precision="float32",
        date=date.today().isoformat(),
        source=f"measured by `repro calibrate` on K={here.K} processes at once; {cases}",
        **mean,
        bytes_per_second=fmean(one.bytes_per_second for one in rates),
        launch_s=fmean(one.launch_s for one in rates),
        memory=memory,
        link=max((one.link for one in rates[:-1]), key=lambda link: link.seconds(2**20)),
    )


def _memory(here: Here) -> int:
    """Bytes that one stage may take: of its GPU, or its part of the host's."""
    from repro.cli import doctor

    facts = doctor.gather(Path())
    if here.machine.device == "cuda":
        sharing = -(-here.K // here.machine.count)
        return int(min(gpu.gib for gpu in facts.torch.devices) * doctor.GIB) // sharing
    return int(facts.memory * doctor.GIB) // here.K


def _rates(rates: "list[Rates]", device: "Device") -> "RenderableType":
    """What was measured, case by case, and which the profile took."""
    rows: list[tuple[str, str, str]] = []
    for title, table, unit, took in (
        ("matrices, convolutions", "matmul", "GFLOP/s", device.matmul_flops.value),
        ("other operators, elements", "other", "G/s", device.other_flops.value),
    ):
        for case in getattr(rates[0], table):
            value = fmean(getattr(one, table)[case] for one in rates)
            rows.append((f"  {case}", f"{value / 1e9:,.2f} {unit}", ""))
        rows.append((title, f"{took / 1e9:,.2f} {unit}", "median of the above"))
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


def _layers(options: CalibrateOptions, model: str, here: Here) -> list["RenderableType"]:
    """Time a model's layers and write the calibration; what to say."""
    from repro.cli import layer_times
    from repro.gpipe import launch
    from repro.harness.rehearsal import check_model

    args = pairs("model_args", options.model_args)
    for name, value in (("smallest", options.smallest), ("N", options.N)):
        if not 1 <= value <= 2**20:
            raise ValueError(f"--{name} {value}: allowed is 1 to {2**20}")
    if options.smallest > options.N:
        raise ValueError(
            f"--smallest {options.smallest}: allowed is 1 to N = {options.N}; choose a smaller one"
        )
    M = options.N // options.smallest
    common: dict[str, Any] = {
        "model": model,
        "model_args": args,
        "K": here.K,
        "balance": "uniform",
        "steps": 2,
    }
    spec = RunSpec(M=M, N=M * options.smallest, task="calibrate", **common)
    check_model(spec)
    own = options.results / here.machine.slug / f"calibration-{slug(model)}.json"
    path = _file_to_write(options.output or own)
    record = launch(time_layers, spec.plain(), here.machine.device, stages=here.K)[0]
    content = {
        **{name: spec.plain()[name] for name in ("model", "model_args", "K")},
        "device": here.words,
        "date": date.today().isoformat(),
        "unit": record.unit,
        "calibration": record.calibration.model_dump(mode="json"),
    }
    if machine.torchrun_rank() in (None, 0):
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    trust = " --trust" * model.startswith("import:")  # the file names code
    command = f"repro simulate --calibration {path} --K {here.K}{trust}"
    use = f"wrote {path}; `{command}` simulates steps with these times"
    return [
        f"{here.words}\n",
        *layer_times.tables(spec, record, device_path(options, here)),
        f"\n{use}",
    ]


def time_layers(plain: dict[str, Any], kind: str) -> "CalibrateRound":
    """What one of K processes does: the harness task "calibrate"."""
    import torch.distributed as dist

    from repro.harness.job import Job
    from repro.harness.schema import CalibrateRound
    from repro.harness.tasks import calibrate

    record = calibrate.run(Job(RunSpec(**plain), device=kind), dist.get_rank(), []).record
    assert isinstance(record, CalibrateRound)
    return record
