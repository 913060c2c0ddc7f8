"""Compares the mean over micro-batches of a loss with the loss of the whole mini-batch.

The losses of micro-batches are averaged. That gives the loss of the mini-batch if it is a mean of
terms that belong to one example each, and if micro-batches weigh by their numbers of terms. A loss
that compares examples with each other has no such terms. Where `loss_terms` does not know a loss,
its value for all outputs together is computed once, without a graph, and compared with the mean.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice, product
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.core.callables import inside_module, reachable
from repro.gpipe.exact import rng
from repro.gpipe.exact.snapshot import state_preserved
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten, unwrapped
from repro.io.untrusted import short

_log = logging.getLogger(__name__)

_MOST_WAYS = 16  # to join outputs that are tried
# Relative, of two means of the same terms in another order.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}
_ROUNDING_OF_OTHERS = 2e-2
_MASK = 1e4  # outputs that are as large are taken for masked ones, which the loss does not use
_Region = Callable[[], AbstractContextManager[object]]  # what the loss runs in


class LossCheck:
    """Compares a loss with that of the mini-batch, in the steps where that is due.

    It is due in the first, second, fourth, eighth step of a loss and so on, so that a mistake that
    begins later is found within twice as many steps. Steps whose targets have negative numbers,
    as ignored labels are by default, are counted for themselves. A loss that is known to be exact
    is not compared.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: Counter[tuple[Any, ...]] = Counter()  # of each loss, by its code
        self._code: tuple[Any, ...] | None = None
        self._outputs: dict[int, Tree] = {}
        self.losses: dict[int, Tensor] = {}

    def begin(
        self,
        loss_fn: Callable[..., Any],
        targets: Tree,
        parts: Sequence[Tree],
        sizes: Sequence[int],
        weights: Sequence[float],
    ) -> None:
        """Before the first micro-batch of a step.

        `parts` are the targets of the micro-batches, `sizes` their numbers of examples, and
        `weights` those in the mean; a sum has none.
        """
        self._loss, self._targets, self._parts = loss_fn, targets, parts
        self._sizes, self._weights = sizes, weights
        self._outputs, self.losses, self._code = {}, {}, None

    def keep(self, i: int, outputs: Tree) -> None:
        """Keep what the last layer made of micro-batch i, if a check is due."""
        if self._code is None:
            # A loss may be made anew for each step.
            code = (
                getattr(each, "__code__", each if isinstance(each, type) else type(each))
                for each in reachable(self._loss, inside_module)
                if callable(each)
            )
            # The first negative labels may be ones that a loss ignores.
            numbers = [t for t in flatten(unwrapped(self._targets))[0] if not t.is_complex()]
            self._code = (*code, any(bool((t < 0).any()) for t in numbers))
        if (self._steps[self._code] + 1).bit_count() == 1:  # a power of two
            self._outputs[i] = map_leaves(Tensor, copied, outputs)

    def problem(self, region: _Region) -> str:
        """After the last micro-batch: why the loss cannot be split; empty if it can.

        The loss runs in `region`. Whatever it changes is put back.
        """
        count, problem = len(self._parts), ""
        if len(self._outputs) == count:
            outputs = [self._outputs[i] for i in range(count)]
            losses = [float(self.losses.get(i, 0.0)) for i in range(count)]
            self._outputs = {}
            if not self.losses or not all(map(math.isfinite, losses)):
                return ""  # such a step does not count
            problem = self._compare(outputs, losses, region)
        if self._code is not None and not problem:
            self._steps[self._code] += 1
        return problem

    def _compare(self, outputs: Sequence[Tree], losses: Sequence[float], region: _Region) -> str:
        """Why the loss cannot be split; empty if it can, or if that is unknown (logged).

        `outputs` and `losses` are those of the micro-batches.
        """
        last = next(reversed(self.losses))
        dtype = self.losses[last].dtype
        tolerance = _ROUNDING.get(dtype, _ROUNDING_OF_OTHERS) * max(map(abs, losses))
        # Terms that cancel leave the rounding of the terms.
        largest = max((_largest(t) for part in outputs for t in flatten(part)[0]), default=0.0)
        tolerance += 16 * torch.finfo(dtype).eps * largest
        again = self._value(outputs[last], self._parts[last], region)
        if isinstance(again, str):
            return _not_compared(again)
        if abs(again - losses[last]) > tolerance:
            if isinstance(self._loss, nn.Module):  # as a layer may
                return _not_compared("it holds state")
            return (
                f"loss_fn: it is {losses[last]:.6g} for a micro-batch, and {again:.6g} for the "
                "same one again, so it holds state that each call moves; move that outside of it"
            )
        pairs = zip(self._weights or [1.0] * len(losses), losses, strict=True)
        mean = sum(weight * loss for weight, loss in pairs) / (sum(self._weights) or 1.0)
        differing: list[float] = []
        reason = "its outputs cannot be joined"
        trees = [flatten(part) for part in outputs]
        if len({repr(skeleton) for _, skeleton in trees}) > 1:
            return _not_compared(reason)
        of_each = [*zip(*(tensors for tensors, _ in trees), strict=True)]
        for way in islice(product(*map(self._ways, of_each)), _MOST_WAYS):
            whole = unflatten([join() for join in way], trees[0][1])
            value = self._value(whole, self._targets, region)
            if isinstance(value, str):
                reason = value
            elif abs(value - mean) > tolerance:
                differing.append(value)
            elif differing:
                return _not_compared("two dimensions of its outputs may be that of the examples")
            else:
                return ""
        if not differing:
            return _not_compared(reason)
        return (
            f"loss_fn: {differing[0]:.6g} for the mini-batch, {mean:.6g} as the mean of its "
            f"{len(losses)} parts; return the mean, or Weighted(loss_fn, lambda targets: number of "
            "terms), or take M = D = 1 if it compares examples"
        )

    def _ways(self, tensors: tuple[Tensor, ...]) -> list[Callable[[], Tensor]]:
        """The ways to join tensors of all micro-batches, the likeliest first; see `_dimensions`.

        What is the same in all micro-batches, such as a weight, may be shared.
        """
        dimensions = _dimensions(tensors, self._sizes)
        ways: list[Callable[[], Tensor]] = [partial(torch.cat, tensors, n) for n in dimensions]
        is_shared = all(torch.equal(tensor, tensors[0]) for tensor in tensors)
        if tensors[0].shape[:1] != (self._sizes[0],) and is_shared:
            ways.insert(0, lambda: tensors[0])
        return ways

    def _value(self, outputs: Tree, targets: Tree, region: _Region) -> float | str:
        """The loss, without a trace, or why it cannot be compared."""
        unchanged = state_preserved(self._loss)
        with torch.no_grad(), unchanged, rng.trial(self._device) as has_drawn:
            try:
                with region():
                    loss = self._loss(
                        map_leaves(Tensor, copied, outputs),
                        map_leaves(Tensor, copied, unwrapped(targets)),
                    )
                value = float(loss[0] if isinstance(loss, tuple) else loss)
            except Exception as error:  # it only fits micro-batches, or there is too little memory
                return f"it raises {type(error).__name__}: {short(error, quote=False)}"
            if has_drawn():
                return "it draws random numbers"
        return value


def _not_compared(reason: str) -> str:
    _log.warning(
        "loss_fn: not compared with the loss of the whole mini-batch, because %s; it is right if "
        "it is a mean over the examples",
        reason,
    )
    return ""


def _dimensions(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[int]:
    """The dimensions along which tensors of micro-batches of these sizes may be joined.

    Those that are as long as a micro-batch come first: usually dimension 0, or a later one where
    that is time. Otherwise it may be dimension 0, as for tokens of all examples.
    """
    shapes = [tensor.shape for tensor in tensors]
    alike = joinable(shapes)
    of_examples = [n for n in alike if [shape[n] for shape in shapes] == [*sizes]]
    return [*dict.fromkeys([*of_examples, *(n for n in alike if n == 0)])]


def joinable(shapes: Sequence[torch.Size]) -> list[int]:
    """The dimensions along which tensors of these shapes can be joined."""
    others = [[(len(s), *s[:n], *s[n + 1 :]) for s in shapes] for n in range(len(shapes[0]))]
    return [n for n, rest in enumerate(others) if len(set(rest)) == 1]


def _largest(tensor: Tensor) -> float:
    """The largest number in it that no mask put there."""
    if not tensor.is_floating_point():
        return 0.0
    usual = tensor[tensor.abs() < _MASK]
    return usual.abs().max().item() if usual.numel() else 0.0
