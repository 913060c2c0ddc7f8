"""Layers divided over T processes: what their methods share, and which models can be divided.

Matrices (tensor parallelism, Megatron-LM, arXiv:1909.08053, section 3) are divided by torch, as
the `tensor_plan` of a module says (`repro.models.attention.TensorPlan`); see
`repro.methods.sharded`. Convolutions (`repro.methods.convolutions`) are divided with the
collectives of `Group`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.core.layers import Layer, on_meta

_OPERATORS: Any = torch.ops._c10d_functional
_wait = _OPERATORS.wait_tensor


class Group:
    """T processes that have parts of the same layers, for torch's functional collectives.

    On the meta device nothing is sent, and there need be no such processes.
    """

    def __init__(self, number: int, count: int, name: str = "") -> None:
        self.number, self.count = number, count  # t, T
        self._name = name

    def of(self, tensor: Tensor, dimension: int) -> nn.Parameter:
        """This process's part of a parameter, in memory of its own."""
        return nn.Parameter(tensor.detach().chunk(self.count, dimension)[self.number].clone())

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all parts."""
        return _wait(_OPERATORS.all_reduce(tensor, "sum", self._name))

    def gather(self, tensor: Tensor) -> Tensor:
        """[n, ...] -> [T n, ...]: the tensors of all parts, without a graph."""
        tensor = tensor.contiguous()
        return _wait(_OPERATORS.all_gather_into_tensor(tensor, self.count, self._name))

    def exchange(self, flat: Tensor, sizes: list[int], sends: list[int]) -> Tensor:
        """Give `sends[u]` numbers to part u, and get `sizes[u]` of it."""
        return _wait(_OPERATORS.all_to_all_single(flat, sizes, sends, self._name))


def with_summed_gradients(value: Tensor, parts: Group) -> Tensor:
    """The value itself, whose gradient is summed over all parts."""
    value = value.view_as(value)
    if value.requires_grad:
        # A copy, because autograd may use the gradient elsewhere too.
        value.register_hook(lambda g: parts.sum(g.clone(memory_format=torch.contiguous_format)))
    return value


def divisible(layer: nn.Module) -> Iterator[Any]:
    """The modules in a layer that have a plan of how they are divided."""
    for module in list(layer.modules()):
        if hasattr(module, "tensor_plan"):
            yield module


def refuse_indivisible(layers: Sequence[Layer], T: int) -> None:
    """Raise a one-line ValueError if a model's matrices cannot be divided over T processes."""
    asked = f"tensor_parallel = {T}"
    modules = [module for layer in on_meta(layers) for module in divisible(layer)]
    if not modules:
        raise ValueError(
            f"{asked}: no layer of this model has a plan of how its matrices are divided (an "
            "attribute tensor_plan); use the model 'transformer', or another method, such as 'data'"
        )
    for module in modules:
        plan = module.tensor_plan
        sizes = {name: getattr(module, name) for name in plan.counts}
        sizes |= {f"outputs of {name}": getattr(module, name).out_features for name in plan.columns}
        for name, size in sizes.items():
            if size % T:
                raise ValueError(
                    f"{asked}: the {size} {name} of a {type(module).__name__} cannot be divided "
                    f"evenly; allowed are divisors of {size}"
                )
