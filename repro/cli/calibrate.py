"""`repro calibrate`: measures this machine's device profile, or the layer times of a model."""

import dataclasses
import math
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval

from repro.cli import doctor
from repro.cli.answers import tell
from repro.cli.options import MiniBatchOrNone, json_file, parse
from repro.cli.source import ModelOptions, this_machine
from repro.costs.device import Device
from repro.harness import contention, machine
from repro.harness.catalog import pairs
from repro.harness.job import Job, Work
from repro.harness.schema import CalibrateRound, CalibrationFile
from repro.harness.sizes import AMOEBANET, DEFAULT_N, TRANSFORMER, small
from repro.harness.spec import RunSpec, assigned, slug
from repro.harness.text import seconds, size
from repro.io.untrusted import refuse_links

_FITTED_N = 32  # examples of the largest micro-batch whose layers make a device profile


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(ModelOptions):
    """Measure this machine's rates, or a model's layer times, for `repro simulate`.

    Without a [MODEL], a device profile is fitted to the layers of an AmoebaNet-D and a Transformer,
    in about half a minute. With a [MODEL], its layers are timed in micro-batches of several sizes,
    on K processes at once and in turn. Without --model-args the models of this project are small on
    a CPU, as in `repro run sweep`, and have the paper's size on GPUs.
    """

    K: Annotated[int | None, Interval(ge=2, le=1024)] = None
    """processes at once, one thread each on the CPU; by default one per device, at least 2"""
    N: MiniBatchOrNone = None
    """of a model: examples in the largest timed micro-batch; by default 32"""
    smallest: Annotated[int | None, Interval(ge=1, le=2**20)] = None
    """of a model: examples in the smallest timed micro-batch, by default 1; sizes double up to N"""
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
        here = self.machine
        kind = "one thread each" if here.device == "cpu" else f"{here.count} GPUs"
        shared = f"; only {here.count} devices, so they share them" if here.count < self.K else ""
        at_once = f"K={self.K} processes at once, {kind}"
        return f"{here.kind}, {at_once}, {here.precision or 'float32'}, torch {here.torch}{shared}"


def main(arguments: list[str]) -> int:
    options = parse(CalibrateOptions, arguments, "repro calibrate")
    of_model = options.model_args, options.smallest, options.N
    if not options.model and of_model != ((), None, None):
        raise ValueError(
            "--model-args, --smallest, --N: of a model, and none is named; name one, such as "
            "transformer"
        )
    devices, watch = this_machine(), contention.CpuShare()
    most = max(2, devices.count)
    if (options.K or 0) > most:
        raise ValueError(f"--K {options.K}: allowed is 2 to {most}, one for each device or core")
    origin = Origin(devices, options.K or most)
    answer = _layers(options, origin) if options.model else _machine(options, origin)
    if not machine.torchrun_rank():
        tell({"on": origin.text, "warning": contention.warning(watch.share()) or None} | answer)
    return 0


def _file_to_write(options: CalibrateOptions, origin: Origin, name: str) -> Path:
    path = options.output or options.results / origin.machine.slug / name
    if options.output is None:
        refuse_links(options.results, path)
    return json_file("--output", path)


def _machine(options: CalibrateOptions, origin: Origin) -> dict[str, Any]:
    from repro.gpipe import launch

    here, path = origin.machine, _file_to_write(options, origin, "device.json")
    scale = "node" if here.device == "cuda" else "laptop"
    sizes = {"amoebanet-d": AMOEBANET[scale], "transformer": TRANSFORMER[scale] | {"L": 2}}
    alike: dict[str, Any] = {"task": "roofline", "balance": "uniform", "steps": 2, "K": origin.K}
    specs = [
        RunSpec(model=model, model_args=args, N=_FITTED_N, M=_FITTED_N // 2, **alike)
        for model, args in sizes.items()
    ]
    # Of a GPU that stages may share, or of the host, which they do share.
    memory = int(doctor.memory()[0]) // origin.K
    if here.device == "cuda":
        memory = machine.gpu_memory() // math.ceil(origin.K / here.count)
    texts = {"name": here.slug, "title": origin.text, "memory": memory}
    device = launch(fit_device, specs, here.device, texts, stages=origin.K)[0]
    if not machine.torchrun_rank():
        device.save(path)
    return {
        "matrices, convolutions": f"{device.matmul_flops.value / 1e9:,.2f} GFLOP/s",
        "other operators": f"{device.other_flops.value / 1e9:,.2f} G elements/s",
        "memory bandwidth": f"{device.bytes_per_second.value / 1e9:,.2f} GB/s",
        "an operator on the device": seconds(device.launch_s.value),
        "an operator on its host": seconds(device.host_s.value),
        "link between stages": f"{device.link.bytes_per_second / 1e9:,.2f} GB/s",
        "latency of a message": seconds(device.link.latency),
        "memory of a stage": size(device.memory.value),
        "how": device.matmul_flops.source,
        "wrote": f"{path}; in a run's spec it is profile={str(path)!r}",
        "use": f"`repro simulate transformer --device {path} --K {origin.K}`",
    }


def _layers(options: CalibrateOptions, origin: Origin) -> dict[str, Any]:
    from repro.gpipe import launch
    from repro.harness.rehearsal import check

    N, smallest, K = options.N or DEFAULT_N, options.smallest or 1, origin.K
    if smallest > N:
        raise ValueError(f"--smallest {smallest}: allowed is 1 to {N}")
    model, M = options.model, N // smallest
    scale = "node" if origin.machine.device == "cuda" else "laptop"
    args = pairs("model_args", options.model_args) or small(model, scale)
    alike: dict[str, Any] = {"task": "calibrate", "balance": "uniform", "steps": 2, "K": K}
    spec = RunSpec(model=model, model_args=args, N=M * smallest, M=M, **alike)
    check([spec])
    path = _file_to_write(options, origin, f"calibration-{slug(model)}.json")
    record = launch(time_layers, spec, origin.machine.device, stages=K)[0][0]
    file = CalibrationFile(
        model=model,
        model_args=args,
        K=K,
        device=origin.text,
        date=date.today().isoformat(),
        unit=record.unit,
        calibration=record.calibration,
    )
    if not machine.torchrun_rank():
        path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    trust = " --trust" if model.startswith("import:") else ""  # the file names code
    examples = record.unit.partition("/")[0]
    return {
        "model": f"{model} ({assigned(args) or 'its defaults'})",
        f"F, R and B of each layer, micro-batches of n {examples}, measured": _times(record),
        "wrote": str(path),
        "use": f"`repro simulate --calibration {path} --K {K} --N {N}{trust}`",
    }


def fit_device(specs: list[RunSpec], kind: str, texts: dict[str, Any]) -> Device:
    import torch.distributed as dist

    from repro.harness.tasks.calibrate import fitted_device
    from repro.harness.tasks.run import choose_kernels
    from repro.models import build

    if kind == "cuda":
        choose_kernels(exact=False)
    jobs = [Job(spec, device=kind) for spec in specs]
    models = [build(spec.model, **spec.arguments) for spec in specs]
    return fitted_device(jobs, models, dist.get_rank(), **texts)[0]


def time_layers(spec: RunSpec, kind: str) -> Any:
    """The record of the task "calibrate"; rank 0 has it."""
    import torch.distributed as dist

    from repro.harness.tasks.run import run

    return [each.record for each in run(Work((Job(spec, device=kind),)), dist.get_rank())]


def _times(record: CalibrateRound) -> list[dict[str, Any]]:
    of, alone = record.calibration, record.calibration.alone
    assert alone is not None
    columns: dict[str, Sequence[float]] = {}
    for kind, letter in (("forward", "F"), ("recompute", "R"), ("backward", "B")):
        for n, times in zip(of.sizes, getattr(of, kind), strict=True):
            columns[f"{letter} n={n}"] = times
        columns[f"{letter} alone"] = getattr(alone, kind)[-1]
    rows = [*zip(*columns.values(), strict=True), [sum(times) for times in columns.values()]]
    return [
        {"layer": "all" if layer == len(rows) - 1 else str(layer)}
        | {f"{name}_s": seconds for name, seconds in zip(columns, row, strict=True)}
        for layer, row in enumerate(rows)
    ]
