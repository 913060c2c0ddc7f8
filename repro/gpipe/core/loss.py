"""The loss of a mini-batch as a sum over its micro-batches, each weighted by its share."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.core.callables import names_in, parts_of, reachable
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.loss_terms import terms_of
from repro.gpipe.core.ownership import refuse_foreign_leaves
from repro.gpipe.exact.snapshot import OWN_KEYS
from repro.gpipe.tree import Tree, flatten, map_leaves, sizes, split
from repro.gpipe.tree import check as check_batch
from repro.io.untrusted import short

Metrics = dict[str, Tensor | float]
# (outputs, targets) of a micro-batch -> its mean loss, a tensor, or that and metrics.
Loss = Callable[[Any, Any], Any]


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


def refuse_foreign_modules(loss_fn: Any, foreign: Collection[Any]) -> None:
    """Raise a ValueError if a loss names layers or weights of other stages: they never run here.

    It may name a container of all layers. Their weights raise an error of their own, so of what is
    in it only other attributes that the loss names are refused.
    """
    if not callable(loss_fn):
        raise ValueError(
            f"loss_fn: {short(loss_fn)} cannot be called; give (outputs, targets) -> mean loss"
        )
    reached = [*reachable(loss_fn)] if foreign else []
    codes = [each.__code__ for each in reached if isinstance(each, FunctionType)]
    words: set[Any] = set().union(*(names_in(code) | {*code.co_consts} for code in codes))
    containers = [each for each in reached if isinstance(each, list | tuple | dict)]
    contained = {id(member) for each in containers for member in parts_of(each)}
    for found in reached:
        used: list[Any] = []
        if isinstance(found, nn.Module):
            of_others = [part for part in found.modules() if part in foreign]
            named = found in foreign and id(found) not in contained
            used = of_others if named else [part for part in of_others if words & _kept(part)]
        elif isinstance(found, Tensor) and found.layout == torch.strided:
            used = [storage for storage in [found.untyped_storage()] if storage in foreign]
        if used:
            raise ValueError(
                f"loss_fn: uses {type(found).__name__} of the model, and other stages run layers "
                "of it; return what the loss needs with the outputs"
            )


def _kept(layer: nn.Module) -> set[str]:
    """Attributes and methods of a layer that not every module has."""
    return (vars(layer).keys() | _names_of(type(layer))) - OWN_KEYS


@cache
def _names_of(kind: type) -> set[str]:
    return {*dir(kind)} - {*dir(nn.Module)}


class MeanLoss:
    """Turns the last stage's outputs of micro-batch i into its share of the mini-batch's loss.

    `total` sums a number over all replicas. The loss may also use `parameters`.
    With a `check`, the mean is compared with the loss of the mini-batch where that is due. That of
    several replicas is not, so that they need terms that are known, and two micro-batches each.

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
        parameters: Sequence[nn.Parameter] = (),
        check: LossCheck | None = None,
    ) -> None:
        self._loss = loss_fn
        self._parameters = parameters
        self.parts: list[Tree] = [None] * micro_batches
        self.metrics: dict[int, Metrics] = {}
        if targets is not None:
            found = check_batch(targets, micro_batches, "targets")
            if found != examples:
                raise ValueError(f"targets: {found} examples, but the inputs have {examples}")
            self.parts = split(targets, micro_batches)
        counts = sizes(examples, micro_batches)
        is_weighted = isinstance(loss_fn, Weighted)
        uncompiled: Any = loss_fn.loss if is_weighted else loss_fn
        for name in ("_orig_mod", "_torchdynamo_orig_callable"):
            uncompiled = getattr(uncompiled, name, uncompiled)
        terms = terms_of(uncompiled, self.parts, counts)
        is_sum = terms is not None and terms.summed
        # Whether it is known to be right, if outputs and targets have one shape where that counts.
        self._is_exact = terms is not None
        self._needs_one_shape = terms is not None and not terms.of_labels
        weights: Sequence[float] = [*map(float, counts)]
        if is_weighted and loss_fn.weight is not len:  # which would count the members of a dict
            weights = [to_float(loss_fn.weight(part)) for part in self.parts]
        if is_weighted and terms is not None:
            self._is_exact = not is_sum and all(map(math.isclose, weights, terms.weights))
        elif terms is not None:
            weights = terms.weights
        self._shares = _shares(weights, total)
        is_replica = not math.isclose(sum(self._shares), 1)
        is_compared = micro_batches > 1 and (is_weighted or terms is not None)
        self._is_unsure = check is not None and is_replica and not is_compared
        if is_sum and not is_weighted:
            weights, self._shares = [], [1.0] * micro_batches
        # Of any micro-batch so far.
        self._outputs_require_gradient = self._loss_requires_gradient = False
        self._leaves_are_own = False  # those of the loss's graph; all micro-batches have alike ones
        self._check = check if micro_batches > 1 else None
        if self._check is not None:
            self._check.begin(uncompiled, targets, self.parts, counts, weights)

    def __call__(self, i: int, outputs: Tree) -> Tensor:
        """The share of micro-batch i, a scalar."""
        tensors, _ = flatten(outputs)
        if not tensors:
            raise ValueError(
                f"the last layer returned {short(outputs)}, which holds no tensor for the loss to "
                "be made of; check that it has a return statement"
            )
        shapes = {tensor.shape for tensor in (*tensors, *flatten(self.parts[i])[0])}
        if self._needs_one_shape and len(shapes) > 1:
            self._is_exact = False
        if self._check is not None and not self._is_exact:
            self._check.keep(i, outputs)
        ends = [t.grad_fn for t in tensors]
        versions = [t.is_inference() or t._version for t in tensors]
        # A copy, as inputs get one: the loss may write to its targets, and R needs them again.
        targets = map_leaves(Tensor, copied, self.parts[i])
        loss = self._loss(outputs, targets)
        if [t.is_inference() or t._version for t in tensors] != versions:
            raise ValueError("loss_fn: writes to outputs in place; take o = o / 2, not o /= 2")
        if isinstance(loss, tuple) and len(loss) == 2:
            loss, self.metrics[i] = loss[0], _checked(loss[1])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            returned = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ValueError(
                f"loss_fn: returned {returned}, needed is one number, the mean over the "
                "micro-batch, or (that number, a dict of metrics)"
            )
        if self._shares[i] == 0:
            # A sum of no elements, with gradients of zero: the outputs may be NaN.
            empty = (t.flatten()[:0].sum() for t in tensors if t.is_floating_point())
            return sum(empty, start=torch.zeros(()))
        if self._check is not None:
            self._check.losses[i] = loss.detach()
        self._outputs_require_gradient |= any(t.requires_grad for t in tensors)
        self._loss_requires_gradient |= loss.requires_grad
        if loss.requires_grad and not self._leaves_are_own:
            refuse_foreign_leaves([loss], [*tensors, *self._parameters], ends)
            self._leaves_are_own = True
        return loss * self._shares[i]

    def problem(self, region: Callable[[], AbstractContextManager[object]]) -> str:
        """After the last micro-batch: why the loss cannot be split, which runs in `region`."""
        problem = "" if self._check is None else self._check.problem(region)
        is_unsure = self._is_unsure and not self._is_exact and self._loss_requires_gradient
        if problem or not is_unsure:
            return problem
        return (
            "loss_fn: replicas do not compare it; give Weighted(loss_fn, lambda targets: number of "
            "terms), such as len for a mean over examples, and take M of 2 or more"
        )

    def refuse_constant(self) -> None:
        """After the last backward: raise a ValueError if outputs had gradients and no loss did."""
        if self._outputs_require_gradient and not self._loss_requires_gradient:
            raise ValueError("loss_fn: no micro-batch's loss has a gradient; do not detach() it")


def _shares(weights: Sequence[float], total: Callable[[float], float]) -> list[float]:
    """The share of each micro-batch in the mean over the mini-batches of all replicas."""
    valid = all(weight >= 0 and math.isfinite(weight) for weight in weights)
    # Replicas add their sums, so that with one NaN all of them refuse.
    mini_batch_weight = total(sum(weights) if valid else math.nan)
    if not mini_batch_weight > 0:
        raise ValueError(
            f"loss_fn: its micro-batches weigh {weights}; each weight must be finite and at "
            "least 0, and the mini-batch's more than 0: a mean over nothing is none"
        )
    return [weight / mini_batch_weight for weight in weights]


def _checked(metrics: object) -> Metrics:
    """The metrics that a loss returned, without graphs."""
    if not isinstance(metrics, dict) or not all(
        isinstance(key, str) and isinstance(value, bool | int | float | Tensor)
        for key, value in metrics.items()
    ):
        raise ValueError(
            f"loss_fn: returned metrics {short(metrics)}; give a dict of numbers or tensors by "
            "name, which are summed over the mini-batch"
        )
    return {name: _summable(value) for name, value in metrics.items()}


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


def to_float(value: Any) -> float:
    """Convert a number, or the string "inf" as torch does; NaN, which is refused, for all else."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
