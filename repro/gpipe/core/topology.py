"""Which process runs which stage of which replica, on which device."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress

import torch
import torch.distributed as dist

from repro.gpipe.runtime import health


def place(stages: int, replicas: int, tensor_parallel: int) -> tuple[int, int]:
    """The number of this process's chain of stages (D T chains), and of its stage in it."""
    arguments = f"stages={stages}"
    for name, count in (("replicas", replicas), ("tensor_parallel", tensor_parallel)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}={count!r}: must be a whole number, at least 1")
        arguments += f", {name}={count}" if count > 1 else ""
    world = dist.get_world_size() if dist.is_initialized() else 1
    needed = stages * replicas * tensor_parallel
    if needed > world:
        raise ValueError(
            f"{arguments}: only {world} process(es) here and {needed} are needed; start them with "
            f"repro.gpipe.launch(fn, stages={needed}) or torchrun --nproc-per-node {needed}"
        )
    if needed == 1:
        return 0, 0
    rank = dist.get_rank()
    if rank >= needed:
        raise ValueError(
            f"stages={stages}: rank {rank} has no stage; build the Pipeline on ranks 0 to "
            f"{needed - 1} only"
        )
    return divmod(rank, stages)


def own_device(device: torch.device | str | int | None, rank: int) -> torch.device:
    """The device of this stage."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # The same GPU that `group.initialise` makes the current one: on several hosts, where each may
    # have more GPUs than ranks, the rank on this host counts.
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    in_turn = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device is None:
        return in_turn
    with suppress(RuntimeError, TypeError):  # no such kind, or none in this build
        chosen = torch.device(device)
        if chosen.type == "cuda" and gpus and chosen.index is None:
            return in_turn
        if chosen.type == "cpu" or (chosen.type == "cuda" and (chosen.index or 0) < gpus):
            return chosen
    allowed = "'cpu', for torch can use no GPU here"
    if gpus:
        allowed = f"'cuda' or 'cuda:0' to 'cuda:{gpus - 1}', or 'cpu'"
    raise ValueError(f"device={str(device)!r}: choose {allowed}; or leave it out")


def refuse_unlike(rank: int, settings: Mapping[str, object]) -> None:
    """Raise a ValueError on every rank if one has other settings, since it would hang otherwise.

    Rank 0 is in every pipeline and numbers them in the store. Another rank skips the numbers of
    pipelines that are too small to need it.
    """
    watch = health.begin(None, rank, dist.get_world_size())
    watch.beat()
    settings_text = json.dumps({name: repr(value) for name, value in settings.items()})
    while True:
        number = watch.pipelines
        watch.pipelines += 1
        if rank == 0:
            watch.set(f"pipeline/{number}/0", settings_text)
        (first,) = watch.wait_for(f"pipeline/{number}", [0])
        needed = math.prod(int(first[name]) for name in ("stages", "replicas", "tensor_parallel"))
        if rank < needed:
            break
    watch.set(f"pipeline/{number}/{rank}", settings_text)
    for other, theirs in enumerate(watch.wait_for(f"pipeline/{number}", range(needed))):
        for name, value in first.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name}={theirs[name]} on rank {other}, but {value} on rank 0; give every "
                    "rank the same"
                )
