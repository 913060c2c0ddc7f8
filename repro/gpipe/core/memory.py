"""Peak memory of one rank.

On a GPU it is read from the allocator's statistics. The CPU's allocator keeps none, so there it is
the bytes of all live tensor storages, counted by watching every operator. That is slow, so it is
measured in a step of its own and never in a timed one.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # private; imported only here

from repro.gpipe.tree import flatten


class LiveBytes(TorchDispatchMode):
    """While active, `now` and `peak` are the bytes of the live storages that it has seen."""

    def __init__(self, resident: Iterable[Tensor] = (), device: str = "") -> None:
        """Count from what is alive already."""
        super().__init__()
        self.now = self.peak = 0
        self._device = device
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

    def _gone(self, key: int) -> None:
        size = self._sizes.pop(key)
        self.now -= size
        self.ended(key, size)

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
    """Yield what training keeps between steps; a list would keep it in a step, too.

    That is parameters, buffers, gradients and optimizer state.
    """
    yield from module.parameters()
    yield from module.buffers()
    yield from (p.grad for p in module.parameters() if p.grad is not None)
    if optimizer is not None:
        yield from flatten([list(state.values()) for state in optimizer.state.values()])[0]


def peak_memory(
    step: Callable[[], object],
    device: torch.device,
    resident: Iterable[Tensor],
    meter: type[LiveBytes] = LiveBytes,
) -> int:
    """Peak bytes of this rank while a step runs, `resident` tensors included.

    Counted are parameters, buffers, gradients, optimizer state, activations and messages: on the
    CPU live storages of tensors, on a GPU what the allocator handed out.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    with meter(resident) as live:
        step()
    return live.peak
