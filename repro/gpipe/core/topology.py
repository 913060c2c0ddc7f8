"""Which process runs which stage of which replica, on which device."""

import json
from collections.abc import Mapping

import torch
import torch.distributed as dist

from repro.gpipe.runtime import health


def place(stages: int, replicas: int) -> tuple[int, int]:
    """This process's replica and stage.

    Raises:
        ValueError: if there are fewer processes than stages of all replicas.
    """
    if not isinstance(replicas, int) or replicas < 1:
        raise ValueError(f"replicas={replicas!r}: must be a whole number, at least 1")
    world = dist.get_world_size() if dist.is_initialized() else 1
    needed = stages * replicas
    if needed > world:
        what = f"stages={stages}" if replicas == 1 else f"stages={stages}, replicas={replicas}"
        raise ValueError(
            f"{what}: only {world} process(es) here and each stage needs one; start them with "
            f"repro.gpipe.runtime.launch(fn, stages={needed}) or torchrun --nproc-per-node {needed}"
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
    """The device that was asked for: a GPU of this host in turn where none is named, the CPU where there is none.

    Raises:
        ValueError: if it is not here, or is neither a CPU nor a CUDA device.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    in_turn = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if device is None:
        return in_turn
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):  # no such kind, or none in this build
        found = torch.device("meta")
    if found.type == "cpu":
        return found
    if found.type == "cuda" and gpus and (found.index or 0) < gpus:
        return in_turn if found.index is None else found
    here = (
        f"'cuda' or 'cuda:0' to 'cuda:{gpus - 1}', or 'cpu'"
        if gpus
        else "'cpu', for torch can use no GPU here"
    )
    raise ValueError(f"device={str(device)!r}: choose {here}; or leave it out")


def refuse_unlike(rank: int, settings: Mapping[str, object]) -> None:
    """Raise a ValueError on every rank where one has other settings: it would train another model, or hang.

    Rank 0 has a part in every pipeline, so its list of them is everybody's: a rank goes on in it to
    the next one that is large enough to need this rank. `settings` has "stages" and "replicas".
    """
    watch = health.begin(None, rank, dist.get_world_size())
    watch.beat()
    own = json.dumps({name: repr(value) for name, value in settings.items()})
    while True:
        number = watch.pipelines
        watch.pipelines += 1
        if rank == 0:
            watch.waiting.set(f"pipeline/{number}/0", own)
        (first,) = watch.wait_for(f"pipeline/{number}", [0])
        needed = int(first["stages"]) * int(first["replicas"])
        if rank < needed:
            break
    watch.waiting.set(f"pipeline/{number}/{rank}", own)
    for other, theirs in enumerate(watch.wait_for(f"pipeline/{number}", range(needed))):
        for name, value in first.items():
            if theirs[name] != value:
                raise ValueError(
                    f"{name}={theirs[name]} on rank {other}, but {value} on rank 0; give every "
                    "rank the same"
                )
