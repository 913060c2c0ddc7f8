"""What a layer holds as a plain attribute, besides parameters and buffers, and changes in a forward.

R runs a layer once more. It would draw other numbers from a generator of the layer's own, and
compute with a tensor that F has changed. Neither is put back, so a layer that does this is refused
where it is recomputed. A tensor that is only written, such as the last activations that a layer
keeps to be looked at, does no harm.
"""

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_INSTEAD = "or build the Pipeline with checkpoint='never'"


@dataclass
class Held:
    """A generator or a tensor that a module holds as an attribute.

    Attributes:
        module: which holds it.
        name: its own in the stage, and of the attribute.
        key: of the attribute.
        value: the object.
        mark: a generator's state, or how often the tensor was written to.
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
        """A copy of the tensor that is there now, or the generator's state."""
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


def held(stage: nn.Module) -> list[Held]:
    """The generators and plain tensors of a stage's modules, as they are now."""
    return [
        Held(module, f"{name}.{key}", key, value, mark)
        for name, module in stage.named_modules()
        for key, value in vars(module).items()
        if (mark := _mark(value)) is not None
    ]


def same(before: Any, after: Any) -> bool:
    """Whether an attribute is what it was, but for rounding; both as `Held.now` gives them."""
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return type(before) is type(after) and before == after
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if before.layout != torch.strided or not before.is_floating_point():
        return torch.equal(before, after)
    return torch.allclose(before, after, equal_nan=True)


def _mark(value: Any) -> object:
    """What changes when a generator is drawn from or a tensor is written to; None of anything else."""
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
