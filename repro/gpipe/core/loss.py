"""The loss of a mini-batch as a sum over its micro-batches, each weighted by its share."""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from repro.gpipe.comm.message import copied
from repro.gpipe.core.microbatch import Tree, check, flatten, map_leaves, sizes, split
from repro.gpipe.core.ownership import reachable, refuse_foreign_leaves
from repro.io.untrusted import short

Loss = Callable[[Any, Any], Tensor]  # (outputs, targets) of a micro-batch -> its mean loss


@dataclass(frozen=True)
class Weighted:
    """A mean loss whose terms are not the examples of a micro-batch.

    A mean over the tokens that are not padding, say: `Weighted(loss, lambda targets: (targets !=
    PAD).sum())`.

    Attributes:
        loss: (outputs, targets) of a micro-batch -> its mean loss.
        weight: targets of a micro-batch -> how many terms that mean has, 0 or more. A micro-batch
            of weight 0 adds nothing, and its loss is not computed.
    """

    loss: Loss
    weight: Callable[[Any], Any]

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The mean loss of a micro-batch."""
        return self.loss(outputs, targets)


def refuse_foreign_modules(loss_fn: Any, foreign: Collection[nn.Module]) -> None:
    """Raise a ValueError if a loss names layers or weights of other stages: they never run here."""
    if not callable(loss_fn):
        raise ValueError(
            f"loss_fn: {short(loss_fn)} cannot be called; give (outputs, targets) -> mean loss"
        )
    held = (p for module in foreign for p in module._parameters.values() if p is not None)
    storages = {_storage(parameter) for parameter in held} - {0}
    for found in reachable(loss_fn):
        modules = found.modules() if isinstance(found, nn.Module) else ()
        is_weight = isinstance(found, Tensor) and _storage(found) in storages
        if is_weight or any(module in foreign for module in modules):
            raise ValueError(
                f"loss_fn: uses {type(found).__name__} of the model, and other stages run layers "
                "of it; return what the loss needs from the layers, beside their output"
            )


def _storage(tensor: Tensor) -> int:
    """Where its elements lie, or 0."""
    plain = tensor.layout == torch.strided and not is_lazy(tensor)
    return tensor.untyped_storage().data_ptr() if plain else 0


class MeanLoss:
    """Turns the last stage's outputs of micro-batch i into its share of the mini-batch mean.

    `total` sums a number over all replicas. The loss may use `parameters` besides the outputs.
    """

    def __init__(
        self,
        loss_fn: Loss,
        targets: Tree,
        examples: int,
        micro_batches: int,
        total: Callable[[float], float],
        parameters: Sequence[nn.Parameter] = (),
    ) -> None:
        self._loss = loss_fn
        self._parameters = parameters
        if micro_batches > 1 and _reduction(loss_fn) == "sum":
            raise ValueError(
                'loss_fn: it has reduction="sum", and the losses of the micro-batches are '
                "averaged; give the mean, times N if the sum is meant"
            )
        self.parts: list[Tree] = [None] * micro_batches
        if targets is not None:
            found = check(targets, micro_batches, "targets")
            if found != examples:
                raise ValueError(f"targets: {found} examples, but the inputs have {examples}")
            self.parts = split(targets, micro_batches)
        weights = [float(size) for size in sizes(examples, micro_batches)]
        if isinstance(loss_fn, Weighted):
            weights = [to_float(loss_fn.weight(part)) for part in self.parts]
        valid = all(weight >= 0 and math.isfinite(weight) for weight in weights)
        # Replicas add their sums, so that with one NaN all of them refuse.
        mini_batch_weight = total(sum(weights) if valid else math.nan)
        if not mini_batch_weight > 0:
            raise ValueError(
                f"loss_fn: its micro-batches weigh {weights}; each weight must be finite and at "
                "least 0, and the mini-batch's more than 0: a mean over nothing is none"
            )
        self._shares = [weight / mini_batch_weight for weight in weights]
        # Of any micro-batch so far.
        self._outputs_require_gradient = self._loss_requires_gradient = False

    def __call__(self, i: int, outputs: Tree) -> Tensor:
        """The share of micro-batch i, a scalar."""
        tensors, _ = flatten(outputs)
        if not tensors:
            raise ValueError(
                f"the last layer returned {short(outputs)}, which holds no tensor for the loss to "
                "be made of; check that it has a return statement"
            )
        if self._shares[i] == 0:
            # A sum of no elements, with gradients of zero: the outputs may be NaN.
            empty = (t.flatten()[:0].sum() for t in tensors if t.is_floating_point())
            return sum(empty, start=torch.zeros(()))
        ends = [t.grad_fn for t in tensors]
        # A copy, as inputs get one: the loss may write to its targets, and R needs them again.
        targets = map_leaves(Tensor, copied, self.parts[i])
        loss = self._loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            returned = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss_fn: returned {returned}, needed is one number, the mean over the micro-batch"
            )
        self._outputs_require_gradient |= any(t.requires_grad for t in tensors)
        self._loss_requires_gradient |= loss.requires_grad
        if i == 0 and loss.requires_grad:  # all micro-batches have the same loss
            refuse_foreign_leaves([loss], [*tensors, *self._parameters], ends)
        return loss * self._shares[i]

    def refuse_constant(self) -> None:
        """After the last backward: raise a ValueError if outputs had gradients and no loss did."""
        if self._outputs_require_gradient and not self._loss_requires_gradient:
            raise ValueError("loss_fn: no micro-batch's loss has a gradient; do not detach() it")


def _reduction(loss_fn: Any) -> object:
    """What a loss of torch, or a partial of one, says that it makes of its examples."""
    loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
    named = loss.keywords if isinstance(loss, partial) else {}
    return named.get("reduction", getattr(loss, "reduction", None))


def to_float(value: Any) -> float:
    """Also of the string "inf", as torch allows; NaN, which is refused, if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
