"""The options of `repro predict`, the model, and the source of the times of its layers."""

import dataclasses
import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tyro
from annotated_types import Interval

from repro.cli.options import MiniBatch
from repro.costs import device
from repro.costs.units import parse_bytes
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness import machine
from repro.harness.catalog import pairs
from repro.harness.own_code import code_of
from repro.harness.request import Request
from repro.harness.schema import KeptLayers
from repro.harness.sizes import DEFAULT_N, small
from repro.harness.spec import Optimizer, Recompute, RunSpec, ScheduleName, assigned, digest, slug
from repro.io.redact import tilde_to_home
from repro.io.untrusted import LARGE, from_json, read_text, refuse_links, short

if TYPE_CHECKING:
    from repro.harness.predict import Source
    from repro.models import Model


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """Predict a step of given K and M, the fastest plan, or the largest model to fit.

    With --K, the training step for each K and M. Without --K, a search for the fastest plan on some
    devices: schedule, K, D, M, recomputation and cut. With --largest, a search for the largest
    model that fits into a memory. Steps are simulated and memory is counted; nothing is trained.
    """

    model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]] = ""
    """transformer, amoebanet-d, timm:NAME, or import:module:function, which is code and is run"""
    model_args: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """arguments of the model, such as L=24"""
    K: tuple[int, ...] = ()
    """numbers of devices, which have one stage each, or --stages-per-rank of them"""
    balance: tuple[int, ...] = ()
    """layers of each stage of a single K; by default the cut that is even in time"""
    M: tuple[int, ...] = ()
    """numbers of micro-batches; by default 1, 4 and 32, with --largest 32"""
    N: MiniBatch = DEFAULT_N
    """mini-batch, over all replicas"""
    D: Annotated[int, Interval(ge=1, le=2**16)] = 1
    """replicas of the pipeline, which split the mini-batch and sum their gradients"""
    schedule: ScheduleName = "gpipe"
    """order of forwards and backwards"""
    stages_per_rank: int | None = None
    """stages of each device; at least 2 for an interleaved schedule, otherwise left out"""
    recompute: Recompute = "always"
    """which micro-batches are recomputed"""
    optimizer: Optimizer = "sgd"
    """whose update and state count; Table 1 has rmsprop-momentum, two slots for each parameter"""
    device: str | None = None
    """a profile such as v100 (a wrong name lists all), a .json file, or here: times this machine"""
    link: float | None = None
    """10^9 bits per second between devices, without latency, instead of the device's own link"""
    node: Annotated[int | None, Interval(ge=1, le=2**16)] = None
    """devices of a node, if the profile has a link between nodes; by default as in the profile"""
    results: Path = Path("results")
    """folder in which --device here keeps layer times"""
    memory: str | None = None
    """of each device, such as 16GB (10^9 bytes) or 16GiB (2^30); by default the profile's"""
    devices: Annotated[int | None, Interval(ge=1, le=64)] = None
    """how many there are for the fastest plan; with --device here all of them"""
    top: Annotated[int, Interval(ge=1, le=100)] = 5
    """plans to show"""
    largest: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[SIZE]")] = None
    """find the largest L, or D of AmoebaNet, whose stages fit into SIZE, or --device's memory"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print everything as one JSON object, in seconds and bytes"""


class Chosen(NamedTuple):
    """The model and the source of its layer times."""

    model: "Model"
    model_args: dict[str, Any]
    source: "Source"
    on: str  # the source of the times, for the user
    profile: str | None = None
    kept: KeptLayers | None = None

    @property
    def waits(self) -> bool:
        """Whether a layer takes the same time for every micro-batch, whatever its size."""
        return self.profile is None and self.kept is None

    def warn(self, K: Iterable[int], examples: Iterable[int]) -> None:
        """Say on stderr if a step has other conditions than the layers were timed in."""
        if self.kept is None:
            return
        timed, times = self.kept.K, self.kept.calibration
        # Steps of one process agreed with these times too, see docs/notes/cost_model.md.
        if {*K} - {1, timed} or not all(map(times.covers, examples)):
            print(
                f"warning: layers were timed on K={timed} processes with {times.sizes[0]} to "
                f"{times.sizes[-1]} examples; other steps are extrapolated",
                file=sys.stderr,
            )


def chosen(options: PredictOptions, processes: int | None, N: int) -> Chosen:
    """The model and its layer times.

    --device here times layers on so many processes at once, by default one for each device, in
    micro-batches of up to N examples.
    """
    name, args, link = options.model, pairs("model_args", options.model_args), _link(options.link)
    if options.device == "here":
        return _timed_here(options, name, args, processes, N)
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
    source = Roofline(profile, model, options.optimizer, link, node=options.node)
    on = f"{profile.title}, {profile.precision}"
    return Chosen(model, args, source, on, profile=options.device)


def memory_of(options: PredictOptions, processes: int) -> int | None:
    """Bytes of each device, which so many processes use; None if they are unknown."""
    sizes = {"largest": " ".join(options.largest or ()), "memory": options.memory}
    for name, size in sizes.items():
        if size:
            return parse_bytes(f"--{name}", size)
    if options.device == "here":
        here = this_machine()
        # Several processes may share a GPU.
        return here.memory // math.ceil(processes / here.count) or None
    if options.device is None:
        return None
    return int(device.load(tilde_to_home(options.device)).memory.value)


def this_machine() -> machine.Machine:
    return machine.detect("node" if machine.gpus() else "laptop")


def _link(speed: float | None) -> LinkSpeed | None:
    if speed is not None and not 1e-6 <= speed <= 1e6:
        raise ValueError(f"--link {speed:g}: allowed is 1e-06 to 1e+06")
    return None if speed is None else LinkSpeed(bytes_per_second=1e9 / 8 * speed)


def _timed_here(
    options: PredictOptions, name: str, args: dict[str, Any], processes: int | None, N: int
) -> Chosen:
    """Layer times of this machine: kept ones if they agree, else the layers are timed now."""
    from repro.harness.predict import Calibrated
    from repro.models import build

    here = this_machine()
    most = max(2, here.count)
    K = min(max(2, processes or most), most)
    args = args or small(name, "node" if here.device == "cuda" else "laptop")
    at = f"{here.kind}, K={K} processes at once, torch {here.torch}"
    code = code_of(name) if name.startswith("import:") else None
    # The file is named by all that its times depend on but the largest micro-batch.
    key = digest([name, args, at, here.count, here.precision, code])[:8]
    path = options.results / here.slug / f"layers-{slug(name)}-{key}.json"
    refuse_links(options.results, path)
    kept = None
    with suppress(ValueError):  # there is none, or it is damaged
        kept = KeptLayers.model_validate(from_json(read_text(path, LARGE)))
    if kept is None or not kept.calibration.covers(N):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()  # an error before layers are timed, not after it
        kept = _time(name, args, K, N, here.device, at)
        path.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    model = build(name, **tilde_to_home(args))
    source = Calibrated(kept.calibration, model, options.optimizer, _link(options.link))
    on = f"{at}; layers timed on {kept.date}, kept in {path}"
    return Chosen(model, args, source, on, kept=kept)


def _time(name: str, args: dict[str, Any], K: int, N: int, kind: str, at: str) -> KeptLayers:
    """Time the layers in micro-batches of 1, 2, 4 and so on examples, to N or beyond."""
    from repro.gpipe import StageError, launch
    from repro.harness.rehearsal import check

    M = 2 ** math.ceil(math.log2(N))
    fields: dict[str, Any] = {"model": name, "model_args": args, "K": K, "M": M, "N": M}
    spec = RunSpec(task="calibrate", balance="uniform", steps=2, **fields)
    check([spec])
    print(
        f"timing the layers of {name} ({assigned(args) or 'its defaults'}) on {at}", file=sys.stderr
    )
    try:
        record = launch(time_layers, spec, kind, stages=K)[0][0]
    except StageError as error:
        first, *_traceback = str(error).splitlines()
        raise ValueError(f"model = {short(name)}: {first}") from None
    return KeptLayers(K=K, date=date.today().isoformat(), calibration=record.calibration)


def time_layers(spec: RunSpec, kind: str) -> Any:
    """The record of the task "calibrate"; rank 0 has it."""
    import torch.distributed as dist

    from repro.harness.tasks.run import run

    return [each.record for each in run((Request(spec, device=kind),), dist.get_rank())]
