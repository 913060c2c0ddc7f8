"""Plain attributes of layers that a forward changes: generators of random numbers, and tensors.

R runs a layer once more. It would draw other numbers from a generator of the layer's own, and
compute with a tensor that F has changed. Neither is put back, so a layer that does this is refused
if it is recomputed. A tensor that is only written, such as activations that a layer keeps for
debugging, does no harm.
"""

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_INSTEAD = "or build the Pipeline with checkpoint='never'"


@dataclass
class HeldAttribute:
    """A plain attribute of a module, as it was at one moment: a generator or a tensor.

    Attributes:
        module: the module that has the attribute.
        name: of module and attribute, for messages: `0.block.noise`.
        key: name of the attribute in the module.
        value: the generator or tensor.
        mark: the generator's state then, or how often the tensor had been written to.
    """

    module: nn.Module
    name: str
    key: str
    value: Any
    mark: object

    @property
    def moved(self) -> bool:
        """Whether the attribute is another object now, or the object was changed."""
        now = vars(self.module).get(self.key)
        return now is not self.value or _mark(now) != self.mark

    def now(self) -> Any:
        """The attribute's present value: a copy of the tensor, or the state of the generator."""
        value = vars(self.module).get(self.key)
        return value.detach().clone() if isinstance(value, Tensor) else _mark(value)

    def refusal(self) -> str:
        """Why the layer cannot be recomputed, and what to do."""
        if isinstance(self.value, Tensor):
            return (
                f"layer {self.name}: a tensor that is no buffer, and forward changes it and "
                "computes with it, so re-materialization would use other values; make it a buffer "
                f"by register_buffer(), {_INSTEAD}"
            )
        return (
            f"layer {self.name}: a generator of random numbers that forward draws from, so "
            "re-materialization would draw other numbers; draw from torch's default generator, "
            f"{_INSTEAD}"
        )


def held(stage: nn.Module) -> list[HeldAttribute]:
    """The generators and plain tensors of a stage's modules, as they are now."""
    attributes = []
    for name, module in stage.named_modules():
        for key, value in vars(module).items():
            mark = _mark(value)
            if mark is not None:
                attributes.append(HeldAttribute(module, f"{name}.{key}", key, value, mark))
    return attributes


def same(before: Any, after: Any) -> bool:
    """Whether two values of `HeldAttribute.now` are equal, tensors up to rounding."""
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return type(before) is type(after) and before == after
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if before.layout != torch.strided or not before.is_floating_point():
        return torch.equal(before, after)
    return torch.allclose(before, after, equal_nan=True)


def _mark(value: Any) -> object:
    """What changes if a generator is drawn from or a tensor is written to; None of others."""
    if isinstance(value, Tensor):
        return -1 if value.is_inference() else value._version
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    numpy: Any = sys.modules.get("numpy")  # nothing else could have made one of its generators
    if numpy and isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if numpy and isinstance(value, numpy.random.RandomState):
        return repr(value.get_state())
    return None
