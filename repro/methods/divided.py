"""Which models have matrices that T processes can divide.

Matrices (tensor parallelism, Megatron-LM, arXiv:1909.08053, section 3) are divided by torch, as
the `tensor_plan` of a module says (`repro.models.attention.TensorPlan`); see
`repro.methods.sharded`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from repro.gpipe.core.layers import Layer, on_meta


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
