"""Which process is which rank of which replica, on which device."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.errors import one_of
from repro.gpipe.runtime import health
from repro.gpipe.runtime.status import rank_name, status


@dataclass(frozen=True)
class Place:
    """Where a process is in a pipeline.

    Attributes:
        number: of its rank among the K D of all replicas.
        rank: among the K of its replica.
        name: `stage 1`, or `replica 0, stage 1`.
    """

    number: int
    rank: int
    replica: int
    device: torch.device
    name: str


def take_place(
    config: PipelineConfig, device: torch.device | str | None, alike: Mapping[str, object]
) -> Place:
    """Find the place of this process; settings of all ranks must be alike."""
    number = own_rank(config)
    replica, rank = divmod(number, config.stages)
    kind = "stage" if config.stages_per_rank == 1 else "rank"
    status.who = rank_name(kind, rank, replica, config.replicas)
    place = Place(number, rank, replica, own_device(device, number), status.who)
    if place.device.type == "cuda":
        # Events and communicators belong to the current device.
        torch.cuda.set_device(place.device)
    if config.processes > 1:
        balance = "a cost" if callable(config.balance) else config.balance
        settings = config.arguments | {"balance": balance, **alike}
        _refuse_unlike(number, config.processes, settings)
    return place


def own_rank(config: PipelineConfig) -> int:
    """The rank of this process among the K D of a pipeline."""
    rank, world = 0, 1
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    needed = config.processes
    if needed > world:
        raise ValueError(
            f"K x D = {config.stages} x {config.replicas}: only {world} process(es) here and "
            f"{needed} are needed; start them with "
            f"repro.gpipe.launch(fn, stages={needed}) or torchrun --nproc-per-node {needed}"
        )
    if needed == 1:
        return 0
    if rank >= needed:
        raise ValueError(
            f"rank {rank} has no stage; build the Pipeline on ranks 0 to {needed - 1} only"
        )
    return rank


def own_device(device: torch.device | str | int | None, rank: int) -> torch.device:
    """The device of this rank."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # The same GPU that `group.initialise` makes the current one: on several hosts, where each may
    # have more GPUs than ranks, the rank on this host counts.
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    in_turn = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device is None:
        return in_turn
    name = f"cuda:{device}" if isinstance(device, int) else str(device).replace("cpu:0", "cpu")
    cuda = ["cuda", *(f"cuda:{n}" for n in range(gpus))] if gpus else []
    one_of("device", name, ["cpu", *cuda])
    return in_turn if name == "cuda" else torch.device(name)


def _refuse_unlike(number: int, ranks: int, settings: Mapping[str, object]) -> None:
    """Raise a ValueError on every rank if one has other settings, since it would hang otherwise."""
    health.begin(None, number, dist.get_world_size())
    texts = {name: repr(value) for name, value in settings.items()}
    first, *others = ControlChannel(ranks, number).all_gather(texts)
    for other, theirs in enumerate(others, 1):
        for name, value in first.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name}={theirs[name]} on rank {other}, but {value} on rank 0; give every "
                    "rank the same"
                )
