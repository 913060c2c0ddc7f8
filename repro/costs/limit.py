"""A limit of the memory that a stage may take, and what its errors look like."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Words that only the errors of a limit have: ours, and those of a GPU's allocator.
_OVER = ("are allowed", " allowed; Of the allocated memory")


def refuse_over(peak: int, limit: int) -> None:
    """Raise a MemoryError if a step on the CPU took more bytes of tensors than the limit."""
    if peak > limit:
        raise MemoryError(f"{peak:,} bytes of tensors at once, {limit:,} {_OVER[0]}")


def over_limit(reason: str) -> str:
    """The message of an out-of-memory error if a limit caused it, without what follows; else ""."""
    if not any(words in reason for words in _OVER):
        return ""
    text, found, _ = reason.partition(" is free.")
    return text + found


@contextmanager
def capped(device: torch.device, limit: int) -> Iterator[None]:
    """Limit what torch can take of a GPU for this process; other processes are not affected."""
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    if limit < total:
        own = torch.cuda.memory_reserved(device)
        if free + own < limit:
            raise ValueError(
                f"limit={limit:,}: other processes have left {free + own:,} bytes of {device}"
            )
        torch.cuda.empty_cache()  # the allocator's reserve counts too
        torch.cuda.set_per_process_memory_fraction(limit / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
