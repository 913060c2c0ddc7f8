"""The model that a verb is asked about, and where the times of its layers come from."""

import dataclasses
import math
import sys
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro

from repro.cli.answers import AnswerOptions
from repro.costs import device
from repro.costs.error_bars import BUSY
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import contention, machine
from repro.harness.catalog import pairs
from repro.harness.job import Job
from repro.harness.outside import consent, read
from repro.harness.own_code import code_of
from repro.harness.schema import CalibrationFile
from repro.harness.sizes import small
from repro.harness.spec import Optimizer, RunSpec, assigned, digest, slug
from repro.io.redact import tilde_to_home
from repro.io.untrusted import LARGE, from_json, read_text, refuse_links

if TYPE_CHECKING:
    from repro.harness.predict import Source
    from repro.models import Model


ModelName = tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    model: ModelName = ""
    """named first: transformer, amoebanet-d, timm:NAME, or a function of your own,
    import:package.module:function, which is code and is run"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(AnswerOptions, ModelOptions):
    device: str | None = None
    """a profile such as v100 (a wrong name lists all), a .json file (a profile, or layer times that
    were kept), or here: this machine, on which the layers are timed first, and the times kept"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """allow the file of --device to name code: its model is import:package.module:function"""
    optimizer: Optimizer = "sgd"
    """whose update and state count; Table 1 has rmsprop-momentum, two slots for each parameter"""
    link: float | None = None
    """10^9 bits per second between devices, without latency, instead of the device's own link"""
    results: Path = Path("results")
    """folder in which --device here keeps layer times"""


class Chosen(NamedTuple):
    """The model and the source of its layer times."""

    model: "Model"
    model_args: dict[str, Any]
    source: "Source"
    on: str  # the source of the times, for the user
    profile: str | None = None
    kept: CalibrationFile | None = None
    memory: int | None = None  # bytes of a device, where they are known

    @property
    def waits(self) -> bool:
        """Whether a layer takes the same time for every micro-batch, whatever its size."""
        return self.profile is None and self.kept is None

    def warn(self, K: Iterable[int], examples: Iterable[int]) -> None:
        """Say on stderr if a step has other conditions than the layers were timed in."""
        if self.kept is None:
            return
        timed, times = self.kept.K, self.kept.calibration
        # One process alone was timed as well.
        if {*K} - {1, timed} or not all(map(times.covers, examples)):
            print(
                f"warning: layers were timed on K={timed} processes with {times.sizes[0]} to "
                f"{times.sizes[-1]} examples; other steps are extrapolated",
                file=sys.stderr,
            )


def chosen(options: SourceOptions, processes: int | None, N: int) -> Chosen:
    """The model and its layer times.

    --device here times layers on so many processes at once, by default one for each device, in
    micro-batches of up to N examples.
    """
    name, args, link = options.model, pairs("model_args", options.model_args), _link(options.link)
    if options.device == "here":
        return _timed_here(options, name, args, processes, N)
    if options.device and _has_layer_times(options.device):
        return _from_file(options, options.device, name, args)
    from repro.harness.predict import Known, Roofline, waits
    from repro.models import build

    model = build(name, **tilde_to_home(args))
    if waits(model):
        if options.device is not None:
            raise ValueError(
                f"--device {options.device}: the layers of {name} have fixed times; leave it out"
            )
        return Chosen(model, args, Known(model, link=link), "layers with fixed times")
    if options.device is None:
        raise ValueError("--device: name one; try --device v100, or --device here")
    profile = device.load(tilde_to_home(options.device))
    source = Roofline(profile, model, options.optimizer, link)
    counted = "" if source.stored == 1 else "; memory is counted in float32"
    on, memory = f"{profile.title}, {profile.precision}{counted}", int(profile.memory.value)
    return Chosen(model, args, source, on, profile=options.device, memory=memory)


def this_machine() -> machine.Machine:
    return machine.detect("node" if machine.gpus() else "laptop")


def _link(speed: float | None) -> LinkSpeed | None:
    if speed is not None and not 1e-6 <= speed <= 1e6:
        raise ValueError(f"--link {speed:g}: allowed is 1e-06 to 1e+06")
    return None if speed is None else LinkSpeed(0.0, 1e9 / 8 * speed)


def _has_layer_times(path: str) -> bool:
    """Whether the path is of a file with layer times, and not with a device's profile."""
    try:
        content = from_json(read_text(Path(tilde_to_home(path)), LARGE))
    except ValueError:  # whoever reads the profile says what is wrong
        return False
    return isinstance(content, dict) and "calibration" in content


def _from_file(options: SourceOptions, path: str, name: str, args: dict[str, Any]) -> Chosen:
    """Layer times that were kept.

    The file names its model and arguments; the user may name the same. A model that is code needs
    --trust even if the user names it, since the arguments are the file's.
    """
    file = read(Path(tilde_to_home(path)), CalibrationFile, LARGE)
    if (name or file.model, args or file.model_args) != (file.model, file.model_args):
        raise ValueError(
            f"model = {name!r} with {assigned(args) or 'no arguments'}: {path} has the layers of "
            f"{file.model!r} ({assigned(file.model_args)}); leave both out"
        )
    notice = consent(f"--device {path}", file.model, trusted=options.trust)
    if notice:
        print(notice, file=sys.stderr)
    return _calibrated(options, file, path, file.model, file.model_args)


def _timed_here(
    options: SourceOptions, name: str, args: dict[str, Any], processes: int | None, N: int
) -> Chosen:
    """Layer times of this machine: kept ones if they agree, else the layers are timed now."""
    here = this_machine()
    most = max(2, here.count)
    K = min(max(2, processes or most), most)
    args = args or small(name, "node" if here.device == "cuda" else "laptop")
    at = f"{here.kind}, K={K} processes at once, torch {here.torch}"
    code = code_of(name) if name.startswith("import:") else None
    # The name of the file says what its times depend on, besides the largest micro-batch.
    key = digest([name, args, at, here.count, here.precision, code])[:8]
    path = options.results / here.slug / f"layers-{slug(name)}-{key}.json"
    refuse_links(options.results, path)
    file = read(path, CalibrationFile, LARGE) if path.exists() else None
    # Times of a busy machine are kept for whoever names the file; here they are taken again.
    if file is None or file.others is not None or not file.calibration.covers(N):
        file = _time(name, args, K, N, here.device, at)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
    found = _calibrated(options, file, str(path), name, args)
    # Several processes may share a GPU.
    return found._replace(memory=here.memory // math.ceil(K / here.count) or None)


def _calibrated(
    options: SourceOptions, file: CalibrationFile, path: str, name: str, args: dict[str, Any]
) -> Chosen:
    from repro.harness.predict import Calibrated
    from repro.models import build

    model = build(name, **tilde_to_home(args))
    source = Calibrated(file.calibration, model, options.optimizer, _link(options.link))
    if file.others is not None:
        source.durations = BUSY
    on = f"{file.device}; layers timed on {file.date}, kept in {path}"
    return Chosen(model, args, source, on, kept=file)


def _time(name: str, args: dict[str, Any], K: int, N: int, kind: str, at: str) -> CalibrationFile:
    """Time the layers in micro-batches of 1, 2, 4 and so on examples, to N or beyond."""
    from repro.gpipe import launch
    from repro.harness.rehearsal import check

    M = 2 ** math.ceil(math.log2(N))
    fields: dict[str, Any] = {"model": name, "model_args": args, "K": K, "M": M, "N": M}
    spec = RunSpec(task="calibrate", balance="uniform", steps=2, **fields)
    check([spec])
    print(
        f"timing the layers of {name} ({assigned(args) or 'its defaults'}) on {at}", file=sys.stderr
    )
    watch = contention.CpuShare()
    record = launch(time_layers, spec, kind, stages=K)[0][0]
    others = watch.share()
    return CalibrationFile(
        model=name,
        model_args=spec.model_args,
        K=K,
        device=at,
        date=date.today().isoformat(),
        unit=record.unit,
        calibration=record.calibration,
        others=others if contention.is_busy(others) else None,
    )


def time_layers(spec: RunSpec, kind: str) -> Any:
    """The record of the task "calibrate"; rank 0 has it."""
    import torch.distributed as dist

    from repro.harness.tasks.run import run

    return [each.record for each in run((Job(spec, device=kind),), dist.get_rank())]
