"""Random state that belongs to (seed, step, micro-batch, layer) and never to a process.

So dropout draws the same mask in F and in R, and for every K. The user's own generators are left as they were.
`default_generator.manual_seed` costs about a microsecond, `torch.manual_seed` a hundred times as much.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import torch

INITIALISATION = -1  # the "step" under which layers are initialised


def hashed(seed: int, step: int, micro_batch: int, layer: int) -> int:
    """32 bits that depend on all four numbers, the same on every machine."""
    digest = blake2b(struct.pack("<4q", seed, step, micro_batch, layer), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def reseed(value: int, device: torch.device) -> None:
    """Seed the generators that a layer on this device draws from."""
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.default_generators[_index(device)].manual_seed(value)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Put the generators back as they were on leaving."""
    cpu = torch.default_generator.get_state()
    cuda = torch.cuda.default_generators[_index(device)].get_state() if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.default_generator.set_state(cpu)
        if cuda is not None:
            torch.cuda.default_generators[_index(device)].set_state(cuda)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
