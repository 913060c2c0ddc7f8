"""Whether a forward computes the same bits without a graph as with one.

With re-materialization F needs no graph, and is faster without one. But torch chooses some kernels
by whether there is a graph: those of an LSTM, the fused "fast path" of attention layers in eval
mode, how a product of three-dimensional tensors is folded. F would then differ from R in the last
bits, and what a stage sends from what it trains on. So F goes without a graph only where it was
seen to call the same operators as with one, each with the same bits as its result: some operators,
such as oneDNN's recurrent layers, choose a kernel inside.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from repro.gpipe.core.memory import TorchDispatchMode

_aten = torch.ops.aten
_NO_KERNELS = {_aten.detach.default, _aten.alias.default}  # autograd's own: they compute nothing
_UNINITIALISED = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
# An integer type as wide as each floating-point type, so that bits can be added without rounding.
_AS_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class OperatorLog(TorchDispatchMode):
    """While active, `calls` gets every operator: the form of its tensors, its other arguments, sums of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, str, list[list[int]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        described = repr(_described([args, kwargs]))  # before: it may work in place
        result = func(*args, **kwargs)
        if func not in _NO_KERNELS:
            results = result if isinstance(result, list | tuple) else [result]
            sums = (
                []
                if func in _UNINITIALISED
                else [_sums_of_bits(t) for t in results if isinstance(t, Tensor)]
            )
            self.calls.append((func, described, sums))
        return result


def _sums_of_bits(tensor: Tensor) -> list[int]:
    """Sums over all elements, every second one and every third one: equal bits have equal sums.

    Nothing is copied, since the tensor may be a large part of the device's memory.
    """
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return []
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = torch.view_as_real(plain) if plain.is_complex() else plain
        bits = plain.view(
            torch.uint8 if plain.dtype == torch.bool else _AS_INTEGER[plain.element_size()]
        )
        parts = [bits] if bits.dim() == 0 else [bits, bits[..., ::2], bits[..., ::3]]
        return [int(part.sum(dtype=torch.int64)) for part in parts]


def _described(value: Any) -> Any:
    """Arguments of an operator, tensors by their form and objects by their type."""
    if is_lazy(value):
        return "lazy"  # it has no shape yet
    if isinstance(value, Tensor):
        strides = value.stride() if value.layout == torch.strided and not value.is_nested else None
        return tuple(value.shape) if strides is not None else None, strides, value.dtype
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if isinstance(value, dict):
        return [(key, _described(part)) for key, part in value.items()]
    if value is None or isinstance(
        value, bool | int | float | complex | str | torch.dtype | torch.device
    ):
        return value
    return type(value).__name__
