"""Which process runs which stage of which replica, on which device."""

import torch
import torch.distributed as dist


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
            f"{what}: only {world} process(es) here and each stage needs one; "
            f"start them with repro.gpipe.launch(fn, stages={needed}) or torchrun --nproc-per-node {needed}"
        )
    if needed == 1:
        return 0, 0
    rank = dist.get_rank()
    if rank >= needed:
        raise ValueError(
            f"stages={stages}: rank {rank} has no stage; build the Pipeline on ranks 0 to {needed - 1} only"
        )
    return divmod(rank, stages)


def default_device(rank: int) -> torch.device:
    """A GPU of this host in turn, or the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", rank % torch.cuda.device_count())
    return torch.device("cpu")
