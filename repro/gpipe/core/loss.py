"""The loss of a mini-batch as a sum over its micro-batches, each weighted by its share."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.core.microbatch import Tree, batch_size, flatten, sizes, split
from repro.gpipe.errors import shown
from repro.gpipe.exact.buffers import Changing, Snapshot

Loss = Callable[[Any, Any], Tensor]  # (outputs, targets) of a micro-batch -> its mean loss


@dataclass(frozen=True)
class Weighted:
    """A mean loss that says what a micro-batch weighs where that is not its number of examples.

    A loss over the tokens that are not padding, say: `Weighted(loss, lambda targets: (targets !=
    PAD).sum())`.

    Attributes:
        loss: (outputs, targets) of a micro-batch -> its mean loss.
        weight: targets of a micro-batch -> how many terms that mean has, 0 or more. A micro-batch
            that weighs nothing adds nothing, and its loss is not asked for.
    """

    loss: Loss
    weight: Callable[[Any], Any]

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """The mean loss of a micro-batch."""
        return self.loss(outputs, targets)


class LossModule:
    """What a loss that is an nn.Module holds: nothing in it may be trained or change.

    It would have no part in replicas, clipping and checkpoints, and buffers would change once more
    in R.

    Args:
        module: the loss, or what a `Weighted` one has as its loss.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._buffers = Changing(module, besides=lambda _module, _name: False)
        self._parameters: list[tuple[str, nn.Parameter]] = []

    def before_step(self, trained: Iterable[nn.Parameter]) -> tuple[list[nn.Parameter], Snapshot]:
        """What is needed to undo a step: its parameters, and copies of its buffers.

        Args:
            trained: parameters of the stage, which the loss may use.
        """
        own = {id(parameter) for parameter in trained}
        self._parameters = [
            (name, p) for name, p in self.module.named_parameters() if id(p) not in own
        ]
        return [p for _, p in self._parameters], self._buffers.before_step(learning=False)

    def refusal(self) -> str:
        """After the last backward: what the step did to it that it must not, and what to do; empty if nothing."""
        name, does = self._buffers.newly_changed(), "changes its buffer"
        if trained := [name for name, p in self._parameters if p.grad is not None]:
            name, does = trained[0], "has a gradient for its parameter"
        if name is None:
            return ""
        return (
            f"loss_fn: {type(self.module).__name__} {does} {name!r}, but a loss is not trained, "
            "saved or recomputed like a layer; make it the last layer of the model, one that "
            "returns what a plain loss needs"
        )


class Head:
    """Turns the last stage's outputs of micro-batch i into its share of the mini-batch mean.

    Args:
        loss_fn: the mean loss of a micro-batch.
        targets: of the mini-batch, on the last stage's device, or None.
        examples: N.
        micro_batches: M.
        total: sums a number over all replicas.

    Attributes:
        parts: the targets of each micro-batch.

    Raises:
        ValueError: if the targets do not fit the inputs, or the weights make no mean.
    """

    def __init__(
        self,
        loss_fn: Loss,
        targets: Tree,
        examples: int,
        micro_batches: int,
        total: Callable[[float], float],
    ) -> None:
        self._loss = loss_fn
        self.parts: list[Tree] = [None] * micro_batches
        if targets is not None:
            if (found := batch_size(targets, "targets")) != examples:
                raise ValueError(f"targets: {found} examples, but the inputs have {examples}")
            self.parts = split(targets, micro_batches, "targets")
        weights = [float(n) for n in sizes(examples, micro_batches)]
        if isinstance(loss_fn, Weighted):
            weights = [_number(loss_fn.weight(part)) for part in self.parts]
        right = all(w >= 0 and math.isfinite(w) for w in weights)
        whole = total(sum(weights) if right else math.nan)  # so that every replica refuses
        if not whole > 0:
            raise ValueError(
                f"loss_fn: its micro-batches weigh {weights}; each weight must be finite and at "
                "least 0, and the mini-batch's more than 0: a mean over nothing is none"
            )
        self._shares = [w / whole for w in weights]
        # a gradient, by any of the outputs and by any of the losses
        self._wanted, self._given = False, False

    def __call__(self, i: int, outputs: Tree) -> Tensor:
        """The share of micro-batch i, a scalar."""
        if not flatten(outputs)[0]:
            raise ValueError(
                f"the last layer returned {shown(outputs)}, which holds no tensor for the loss to "
                "be made of; check that it has a return statement"
            )
        if not self._shares[i]:
            return _nothing(outputs)
        try:
            loss = self._loss(outputs, self.parts[i])
        except (TypeError, AttributeError) as error:
            if self.parts[i] is not None:
                raise
            raise ValueError(
                "targets: None on the last stage, and the loss failed with "
                f"{type(error).__name__}: {error}; pass the targets on the last stage, or a loss "
                "that needs none"
            ) from error
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss_fn: returned {found}, needed is one number, the mean over the micro-batch"
            )
        self._wanted |= any(t.requires_grad for t in flatten(outputs)[0])
        self._given |= loss.requires_grad
        return loss * self._shares[i]

    def refuse_constant(self) -> None:
        """After the last backward: raise a ValueError if no loss depended on outputs that could have been trained."""
        if self._wanted and not self._given:
            raise ValueError(
                "loss_fn: no micro-batch's loss has a gradient; do not detach() it, nor make it "
                "of item()"
            )


def _number(weight: Any) -> float:
    """A weight as a number; NaN, which is refused, where it is none."""
    try:
        return float(weight)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def _nothing(outputs: Tree) -> Tensor:
    """Zero, whose gradients are zero; sums of no elements, since an output may be NaN where nothing counts."""
    return sum(
        (t.flatten()[:0].sum() for t in flatten(outputs)[0] if t.is_floating_point()),
        start=torch.zeros(()),
    )
