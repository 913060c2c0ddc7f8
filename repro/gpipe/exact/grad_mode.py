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
from torch.utils._pytree import tree_map_only  # private; imported only here

from repro.gpipe.core.memory import TorchDispatchMode
from repro.gpipe.exact.attributes import digest

_aten = torch.ops.aten
_NO_KERNELS = {_aten.detach.default, _aten.alias.default}  # autograd's own: they compute nothing
_UNINITIALISED = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}


class OperatorLog(TorchDispatchMode):
    """While active, logs every operator.

    Attributes:
        calls: for each operator (the operator, the form of its arguments, digests of its result).
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, str, list[bytes]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # Before the call, which may work in place.
        form = repr(tree_map_only((Tensor, torch.Generator), _form, [args, kwargs]))
        result = func(*args, **kwargs)
        if func not in _NO_KERNELS:
            results = result if isinstance(result, list | tuple) else [result]
            made = [] if func in _UNINITIALISED else results
            self.calls.append((func, form, [digest(t) for t in made if isinstance(t, Tensor)]))
        return result


def _form(tensor: Tensor | torch.Generator) -> object:
    if isinstance(tensor, torch.Generator):  # its text has its address, another one in each call
        return "generator"
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_nested:
        return tensor.dtype
    return tuple(tensor.shape), tensor.stride(), tensor.dtype
