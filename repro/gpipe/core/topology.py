"""Which process is which rank of a pipeline, on which device."""

import os

import torch
import torch.distributed as dist

from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.errors import one_of


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
    """The device of this rank, which becomes the current one if it is a GPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # The same GPU that `group.initialise` makes the current one: on several hosts, where each may
    # have more GPUs than ranks, the rank on this host counts.
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    own = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device is not None:
        name = f"cuda:{device}" if isinstance(device, int) else str(device).replace("cpu:0", "cpu")
        cuda = ["cuda", *(f"cuda:{n}" for n in range(gpus))] if gpus else []
        one_of("device", name, ["cpu", *cuda])
        own = own if name == "cuda" else torch.device(name)
    if own.type == "cuda":
        # Events and communicators belong to the current device.
        torch.cuda.set_device(own)
    return own
