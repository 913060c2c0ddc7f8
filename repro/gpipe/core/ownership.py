"""Ownership: each layer and its parameters belong to exactly one stage.

A stage trains its own parameters. What else its graph ends in would get a gradient that nobody
uses, or would be another stage's weight, of which this process has a copy that is not trained.
"""

import gc
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from repro.gpipe.tree import leaves

# What needs no values of a parameter, as printing, counting and an optimizer do.
_DESCRIPTIONS = (
    "shape size dim ndim numel element_size dtype device is_leaf is_floating_point is_complex "
    "requires_grad requires_grad_ retains_grad grad register_hook "
    "register_post_accumulate_grad_hook __repr__ __hash__"
)


class TrainedElsewhere(nn.Parameter):
    """Replaces a tensor that another rank trains; whatever needs its values raises a ValueError.

    Attributes:
        problem: the error's text.
    """

    problem: str

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Called by torch in place of any of its functions that gets such a tensor."""
        is_property = func.__name__ in ("__get__", "__set__")
        if (func.__self__ if is_property else func).__name__ in _DESCRIPTIONS.split():
            return super().__torch_function__(func, types, args, kwargs or {})
        given = leaves([args, kwargs])
        raise ValueError(next(each.problem for each in given if isinstance(each, cls)))


def empty_foreign_layers(
    layers: Sequence[Any], balance: Sequence[int], held: nn.Module
) -> WeakSet[Any]:
    """Take the values out of the user's layers that this process, which runs `held`, does not run.

    They would stay the initial ones, and take memory. Returned are the modules of these layers and
    the storages of their parameters, which somebody may hold without them.
    """
    foreign: WeakSet[Any] = WeakSet()
    own = {*held.modules()}
    stage_of = [stage for stage, count in enumerate(balance) for _ in range(count)]
    for index, layer in enumerate(layers):
        problem = (
            f"layers[{index}]: its weights are on stage {stage_of[index]}, which trains it; use "
            "pipe.predict or pipe.evaluate in place of the model, pipe.save and whole_state_dict "
            "for its weights or for another Pipeline, and hand on with the output what a layer "
            "or the loss needs of it"
        )
        for part in layer.modules() if isinstance(layer, nn.Module) else ():
            if part in own:
                continue
            foreign.add(part)
            of_part: list[Any] = [part._parameters, part._buffers]
            for tensors in of_part:
                for key, tensor in [*tensors.items()]:
                    if tensor is not None:
                        tensors[key] = _emptied(tensor, problem, foreign)
    return foreign


def _emptied(tensor: Any, problem: str, foreign: WeakSet[Any]) -> Tensor:
    """A parameter is emptied in place, for whoever else has it; a buffer may be a constant."""
    if isinstance(tensor, TrainedElsewhere) or tensor.is_meta:
        return tensor
    blank = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    empty = Tensor._make_subclass(TrainedElsewhere, blank, tensor.requires_grad)
    vars(empty).update(vars(tensor), problem=problem)
    if isinstance(tensor, nn.Parameter):
        if tensor.layout == torch.strided:
            foreign.add(tensor.untyped_storage())
        try:
            torch.utils.swap_tensors(tensor, empty)
            return tensor
        except RuntimeError:  # a weak reference or a graph has it, too
            vars(tensor)["problem"] = problem
            tensor.__class__ = TrainedElsewhere  # pyright: ignore[reportAttributeAccessIssue]
    return empty


def refuse_foreign_leaves(
    outputs: Iterable[Tensor], own: Iterable[Tensor], ends: Iterable[Any] = ()
) -> None:
    """Raise a ValueError if the outputs' graph would give a gradient to a tensor not in `own`."""
    found = {id(t): t for t in outputs if t.requires_grad and t.grad_fn is None}
    todo: list[Any] = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(ends)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name().endswith("AccumulateGrad"):
            found[id(node.variable)] = node.variable
        todo += [before for before, _ in node.next_functions if before is not None]
    for tensor in own if found else ():
        found.pop(id(tensor), None)
    for tensor in found.values():
        if len(gc.get_referrers(tensor)) == 1:  # `found`: a layer has made it, and dropped it
            continue
        raise ValueError(
            f"a layer or the loss uses a tensor of shape {tuple(tensor.shape)} that requires a "
            "gradient and is no parameter of this stage's layers; make it an nn.Parameter of one "
            "(a loss that learns: the last layer), which returns it for the loss or other stages; "
            "for a penalty use weight_decay"
        )
