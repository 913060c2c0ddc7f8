"""Peak memory of one rank.

On a GPU it is read from the allocator's statistics. The CPU's allocator keeps none, so there it is
the bytes of all live tensor storages, counted by watching every operator. That is slow, so it is
measured in a step of its own and never in a timed one.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # private; imported only here

from repro.gpipe.core.loss import Loss
from repro.gpipe.core.pipeline import Pipeline
from repro.gpipe.tree import Tree, flatten, unwrapped

# Words that only the errors of a limit have: those of `LiveBytes`, and those of a GPU's allocator.
_OVER = ("are allowed", " allowed; Of the allocated memory")


def over_limit(reason: str) -> str:
    """The message of an out-of-memory error if a limit caused it, without what follows; else ""."""
    if not any(words in reason for words in _OVER):
        return ""
    text, found, _ = reason.partition(" is free.")
    return text + found


class LiveBytes(TorchDispatchMode):
    """While active, `now` and `peak` are the bytes of the live storages that it has seen."""

    def __init__(
        self, resident: Iterable[Tensor] = (), limit: int | None = None, device: str = ""
    ) -> None:
        """Count from what is alive already."""
        super().__init__()
        self.now = self.peak = 0
        self._limit, self._device = limit, device
        self._sizes: dict[int, int] = {}  # of the storages that are alive
        for tensor in resident:
            # Inputs may be a slice of a data set; the rest of its storage does not count.
            self._add(tensor, tensor.numel() * tensor.element_size())

    def _add(self, tensor: Tensor, size: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes or (self._device and tensor.device.type != self._device):
            return
        size = storage.nbytes() if size is None else min(storage.nbytes(), size)
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key)
        self.began(key, size)
        if self._limit is not None and self.now > self._limit:
            raise MemoryError(f"{self.now:,} bytes of tensors at once, {self._limit:,} {_OVER[0]}")

    def _gone(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.now -= size
        self.ended(key, size)

    def resized(self, key: int, size: int) -> None:
        """A storage has another size now."""
        self.now += size - self._sizes[key]
        self._sizes[key] = size

    # For subclasses.

    def began(self, key: int, size: int) -> None:
        """A storage is seen for the first time."""

    def ended(self, key: int, size: int) -> None:
        """A storage is gone."""

    def ran(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """An operator ran."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in flatten(result)[0]:
            self._add(tensor)
        self.ran(func, args, kwargs or {}, result)
        return result


def at_rest(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Iterator[Tensor]:
    """What training keeps between steps: parameters, buffers, gradients and optimizer state."""
    yield from module.parameters()
    yield from module.buffers()
    yield from (p.grad for p in module.parameters() if p.grad is not None)
    if optimizer is not None:
        yield from flatten([list(state.values()) for state in optimizer.state.values()])[0]


def resident(
    pipe: Pipeline, inputs: Tree, targets: Tree, optimizer: torch.optim.Optimizer | None
) -> Iterator[Tensor]:
    """Yield what a rank has in memory between steps; a list would keep it in a step."""
    yield from at_rest(pipe.module, optimizer)
    read = [inputs if pipe.is_first else None, targets if pipe.is_last else None]
    yield from flatten(unwrapped(read))[0]


def measure(
    pipe: Pipeline,
    inputs: Tree,
    targets: Tree,
    loss_fn: Loss,
    optimizer: torch.optim.Optimizer | None = None,
    limit: int | None = None,
) -> list[int]:
    """Peak bytes on each rank during one training step, which this runs, slower than usual.

    Counted are parameters, buffers, gradients, optimizer state, activations and messages: on the
    CPU live storages of tensors, on a GPU what the allocator handed out. Call it on every rank.

    Raises:
        MemoryError, torch.OutOfMemoryError: if a rank takes more than `limit` bytes.
    """
    step = partial(pipe.train_step, inputs, targets, loss_fn, optimizer)
    between = resident(pipe, inputs, targets, optimizer)
    return pipe.engine.channel.all_gather(peak_memory(step, pipe.device, between, limit))


def peak_memory(
    step: Callable[[], object],
    device: torch.device,
    resident: Iterable[Tensor],
    limit: int | None = None,
    meter: type[LiveBytes] = LiveBytes,
) -> int:
    """Peak bytes while a step runs, `resident` tensors included."""
    if device.type == "cuda":
        with capped(device, limit):
            torch.cuda.reset_peak_memory_stats(device)
            step()
            torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    with meter(resident, limit) as live:
        step()
    return live.peak


@contextmanager
def capped(device: torch.device, limit: int | None) -> Iterator[None]:
    """Limit what torch can take of a GPU for this process; other processes are not affected."""
    torch.cuda.synchronize(device)
    if limit is None:
        yield
        return
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
