"""Whether a forward computes the same bits without a graph as with one.

With re-materialization F needs no graph, and is faster without one. But torch chooses some kernels by whether there is
a graph: those of an LSTM, the fused "fast path" of attention layers in eval mode, how a product of three-dimensional
tensors is folded. F would then differ from R in the last bits, and what a stage sends from what it trains on. So F goes
without a graph only where it was seen to call the same operators as with one.
"""

from typing import Any

import torch
from torch import Tensor

from repro.gpipe.core.memory import TorchDispatchMode

_NO_KERNELS = {torch.ops.aten.detach.default, torch.ops.aten.alias.default}  # autograd's own: they compute nothing


class OperatorLog(TorchDispatchMode):
    """While active, `calls` gets every operator with what its tensors are like and its other arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _NO_KERNELS:
            self.calls.append((func, repr(_described([args, kwargs]))))
        return func(*args, **kwargs)


def _described(value: Any) -> Any:
    """Arguments of an operator, tensors by their form and objects by their type."""
    if isinstance(value, Tensor):
        strides = value.stride() if value.layout == torch.strided and not value.is_nested else None
        return tuple(value.shape) if strides is not None else None, strides, value.dtype
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if isinstance(value, dict):
        return [(key, _described(part)) for key, part in value.items()]
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device):
        return value
    return type(value).__name__
