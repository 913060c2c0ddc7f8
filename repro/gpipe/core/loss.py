"""The loss of a mini-batch as a sum over its micro-batches, each weighted by its share."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.core.callables import names_in, reachable
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.loss_terms import terms_of
from repro.gpipe.core.ownership import refuse_foreign_leaves
from repro.gpipe.tree import Tree, flatten, map_leaves, sizes, split
from repro.gpipe.tree import check as check_batch
from repro.io.untrusted import short

Metrics = dict[str, Tensor | float]
# (outputs, targets) of a micro-batch -> its mean loss, a tensor, or that and metrics.
Loss = Callable[[Any, Any], Any]
# Attributes and methods that lists and dicts may have, too.
_OF_CONTAINERS = {*dir(nn.Sequential()), *dir(nn.ModuleDict())}


@dataclass(frozen=True)
class Weighted:
    """A mean loss whose terms are not the examples of a micro-batch.

    A mean over the tokens that are not padding, say: `Weighted(loss, lambda targets: (targets !=
    PAD).sum())`.

    Attributes:
        loss: (outputs, targets) of a micro-batch -> its mean loss.
        weight: targets of a micro-batch -> how many terms that mean has, 0 or more. A micro-batch
            of weight 0 adds its metrics alone.
    """

    loss: Loss
    weight: Callable[[Any], Any]

    def __call__(self, outputs: Any, targets: Any) -> Any:
        """The mean loss of a micro-batch, and its metrics if there are some."""
        return self.loss(outputs, targets)


def inner_loss(loss_fn: Any) -> Any:
    """The loss itself, without `Weighted` and torch.compile around it."""
    loss = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
    for name in ("_orig_mod", "_torchdynamo_orig_callable"):
        loss = getattr(loss, name, loss)
    return loss


def refuse_foreign_modules(loss_fn: Any, foreign: Collection[Any]) -> None:
    """Raise a ValueError if a loss reads what layers of other stages hold: they never run here.

    That is an attribute that it names, of a layer that it reaches, or a weight that was detached
    before the layer was emptied. Other weights raise an error of their own, so a loss may reach a
    container of all layers.
    """
    reached = [*reachable(loss_fn)] if foreign else []
    codes = [each.__code__ for each in reached if isinstance(each, FunctionType)]
    named = {name for code in codes for name in names_in(code)} - _OF_CONTAINERS
    for found in reached:
        every = found.modules() if isinstance(found, nn.Module) else ()
        parts = [part for part in every if part in foreign]
        reads = any(n in vars(part) or hasattr(type(part), n) for part in parts for n in named)
        if isinstance(found, Tensor) and found.layout == torch.strided:
            reads = found.untyped_storage() in foreign
        if reads:
            raise ValueError(
                f"loss_fn: uses {type(found).__name__} of the model, and other stages run layers "
                "of it; return what the loss needs with the outputs"
            )


class MeanLoss:
    """Turns the last stage's outputs of micro-batch i into its share of the mini-batch's loss.

    `total` sums a number over all replicas. The loss may use `parameters`, which are read once.
    With a `check`, a loss that is not one of torch.nn is compared with that of the replica's
    mini-batch.

    Attributes:
        parts: the targets of each micro-batch.
        metrics: the metrics that the loss returned for each micro-batch.
    """

    def __init__(
        self,
        loss_fn: Loss,
        targets: Tree,
        examples: int,
        micro_batches: int,
        total: Callable[[float], float],
        parameters: Iterable[nn.Parameter] = (),
        check: LossCheck | None = None,
    ) -> None:
        self._loss, self._parameters = loss_fn, parameters
        self.parts: list[Tree] = [None] * micro_batches
        self.metrics: dict[int, Metrics] = {}
        if targets is not None:
            found = check_batch(targets, micro_batches, "targets")
            if found != examples:
                raise ValueError(f"targets: {found} examples, but the inputs have {examples}")
            self.parts = split(targets, micro_batches)
        counts, loss = sizes(examples, micro_batches), inner_loss(loss_fn)
        is_weighted = isinstance(loss_fn, Weighted)
        terms = None if is_weighted else terms_of(loss, self.parts, counts)
        weights: Sequence[float] = [*map(float, counts)] if terms is None else terms
        if is_weighted and loss_fn.weight is not len:  # which would count the members of a dict
            weights = [float(loss_fn.weight(part)) for part in self.parts]
        # A sum has no terms that it is divided by.
        self._shares = _shares(weights, total) if weights else [1.0] * micro_batches
        # Of any micro-batch so far.
        self._outputs_require_gradient = self._loss_requires_gradient = False
        self._check = check if micro_batches > 1 and terms is None else None
        if self._check is not None:
            self._check.begin(loss, targets, self.parts, counts, weights)

    def __call__(self, i: int, outputs: Tree) -> Tensor:
        """The share of micro-batch i, a scalar."""
        tensors, _ = flatten(outputs)
        ends = [t.grad_fn for t in tensors]
        versions = [t.is_inference() or t._version for t in tensors]
        # A copy, as inputs get one: the loss may write to its targets, and R needs them again.
        made = self._loss(outputs, map_leaves(Tensor, copied, self.parts[i]))
        if [t.is_inference() or t._version for t in tensors] != versions:
            raise ValueError("loss_fn: writes to outputs in place; take o = o / 2, not o /= 2")
        loss, metrics = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not isinstance(metrics, dict):
            returned = tuple(made.shape) if isinstance(made, Tensor) else short(made)
            raise ValueError(
                f"loss_fn: returned {returned}, needed is one number, the mean over the "
                "micro-batch, or (that number, a dict of metrics)"
            )
        self.metrics[i] = {name: _summable(value) for name, value in metrics.items()}
        if self._check is not None:
            self._check.note(i, outputs, loss)
        if self._shares[i] == 0:
            # A sum of no elements, with gradients of zero: the outputs may be NaN.
            empty = (t.flatten()[:0].sum() for t in tensors if t.is_floating_point())
            return sum(empty, start=torch.zeros(()))
        self._outputs_require_gradient |= any(t.requires_grad for t in tensors)
        if loss.requires_grad and not self._loss_requires_gradient:
            # The graphs of all micro-batches end in alike leaves.
            refuse_foreign_leaves([loss], chain(tensors, self._parameters), ends)
            self._loss_requires_gradient = True
        return loss * self._shares[i]

    def problem(self) -> str:
        """After the last backward: why the step is refused, or empty."""
        if self._outputs_require_gradient and not self._loss_requires_gradient:
            return "loss_fn: no micro-batch's loss has a gradient; do not detach() it"
        return "" if self._check is None else self._check.problem()


def _shares(weights: Sequence[float], total: Callable[[float], float]) -> list[float]:
    """The share of each micro-batch in the mean over the mini-batches of all replicas."""
    mini_batch_weight = total(sum(weights))
    if min(weights) < 0 or not 0 < mini_batch_weight < math.inf:
        raise ValueError(
            f"loss_fn: its micro-batches weigh {weights}; each weight must be finite and at "
            "least 0, and the mini-batch's more than 0: a mean over nothing is none"
        )
    return [weight / mini_batch_weight for weight in weights]


def _summable(value: Tensor | float) -> Tensor | float:
    """A copy without a graph; whole numbers of few bits would wrap."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return value if value.is_floating_point() or value.is_complex() else value.long()


def summed(of_each: Iterable[Metrics]) -> Metrics:
    """The sums of metrics by name, added in the order given."""
    sums: Metrics = {}
    for metrics in of_each:
        for name, value in metrics.items():
            sums[name] = sums[name] + value if name in sums else value
    return sums
