"""Whether a forward computes the same bits without a graph as with one.

With re-materialization F needs no graph, and is faster without one. But some of torch's kernels
depend on whether there is a graph: those of an LSTM, the fused "fast path" of attention layers in
eval mode, and how a product of three-dimensional tensors is folded. F would then differ from R in
the last bits, and a stage would train on other values than it sent.

So F goes without a graph only if a trial called the same operators as with one, each with the same
bits as its result. The bits are compared because some operators, such as oneDNN's recurrent layers,
choose a kernel inside.
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
    """While active, logs every operator.

    Attributes:
        calls: for each operator (the operator, the form of its arguments, sums of its result).
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, str, list[list[int]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        form = repr(_form([args, kwargs]))  # before the call, which may work in place
        result = func(*args, **kwargs)
        if func not in _NO_KERNELS:
            sums: list[list[int]] = []
            if func not in _UNINITIALISED:
                results = result if isinstance(result, list | tuple) else [result]
                sums = [sums_of_bits(t) for t in results if isinstance(t, Tensor)]
            self.calls.append((func, form, sums))
        return result


def sums_of_bits(tensor: Tensor) -> list[int]:
    """Sums of the bits of all elements, of every second and of every third one.

    Tensors with the same bits have the same sums. Nothing is copied, since the tensor may be a
    large part of the device's memory.
    """
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        return []
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg()
        if plain.is_complex():
            plain = torch.view_as_real(plain)
        bits = plain.view(_AS_INTEGER[plain.element_size()])  # a bool has one byte, too
        parts = [bits] if bits.dim() == 0 else [bits, bits[..., ::2], bits[..., ::3]]
        return [int(part.sum(dtype=torch.int64)) for part in parts]


def _form(value: Any) -> Any:
    """Arguments of an operator: shape, strides and dtype of tensors, types of objects."""
    if is_lazy(value):
        return "lazy"  # it has no shape yet
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_nested:
            return None, None, value.dtype
        return tuple(value.shape), value.stride(), value.dtype
    if isinstance(value, list | tuple):
        return [_form(member) for member in value]
    if isinstance(value, dict):
        return [(key, _form(member)) for key, member in value.items()]
    plain = bool | int | float | complex | str | torch.dtype | torch.device
    if value is None or isinstance(value, plain):
        return value
    return type(value).__name__
