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
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.comm.message import copied
from repro.gpipe.core.callables import reachable
from repro.gpipe.core.run_layers import LayerRunner
from repro.gpipe.exact import rng
from repro.gpipe.exact.snapshot import state_preserved
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten, unwrapped
from repro.io.untrusted import short

_log = logging.getLogger(__name__)

# Relative, of two means of the same terms in another order.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-5}
_ROUNDING_OF_OTHERS = 2e-2


class _NotComparedError(Exception):
    """Why the loss of the whole mini-batch is not known, or tells nothing."""


class LossCheck:
    """Compares a loss with that of the mini-batch, in the steps where that is due.

    It is due in the first, second, fourth, eighth step of a loss and so on, so that a mistake that
    begins later is found within twice as many steps. Steps whose targets have negative numbers,
    as ignored labels are by default, are counted for themselves.
    """

    def __init__(self, runner: LayerRunner) -> None:
        """The loss runs on the device and in the autocast region of layers."""
        self._runner = runner
        self._steps: Counter[object] = Counter()  # of each kind

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
        `weights` those in the mean.
        """
        self._loss, self._targets, self._parts = loss_fn, targets, parts
        self._sizes, self._weights = sizes, weights
        self._outputs: dict[int, Tree] = {}
        self._losses: dict[int, Tensor] = {}
        # A loss may be made anew for each step, with the same code.
        function = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
        code = getattr(function, "__code__", type(function))
        # The first negative labels may be ones that a loss ignores.
        numbers = [t for t in flatten(unwrapped(targets))[0] if not t.is_complex()]
        self._kind = code, any(bool((t < 0).any()) for t in numbers)
        self._is_due = (self._steps[self._kind] + 1).bit_count() == 1  # a power of two

    def note(self, i: int, outputs: Tree, loss: Tensor) -> None:
        """Keep what the last layer and the loss made of micro-batch i, if a check is due."""
        if self._is_due:
            self._outputs[i] = map_leaves(Tensor, lambda t: copied(t.detach()), outputs)
            self._losses[i] = loss.detach()

    def problem(self) -> str:
        """After the last micro-batch: why the loss cannot be split; empty if it can.

        It is empty, too, if that is unknown, which is logged. What the loss changes is put back.
        """
        if self._is_due:
            # The loss of no terms may be NaN.
            losses = [float(self._losses[i]) if w else 0.0 for i, w in enumerate(self._weights)]
            if not any(self._weights) or not all(map(math.isfinite, losses)):
                return ""  # such a step does not count
            try:
                problem = self._compare(losses)
            except _NotComparedError as reason:
                problem = ""
                _log.warning(
                    "loss_fn: not compared with the loss of the whole mini-batch, because %s; it "
                    "is right if it is a mean over the examples",
                    reason,
                )
            self._outputs.clear()
            if problem:
                return problem
        self._steps[self._kind] += 1
        return ""

    def _compare(self, losses: Sequence[float]) -> str:
        """Why the loss cannot be split; empty if it can. `losses` are those of micro-batches."""
        pairs = zip(self._weights, losses, strict=True)
        mean = sum(weight * loss for weight, loss in pairs) / sum(self._weights)
        i = max(range(len(losses)), key=self._weights.__getitem__)  # one that has terms
        dtype = self._losses[i].dtype
        tolerance = _ROUNDING.get(dtype, _ROUNDING_OF_OTHERS) * max(map(abs, losses))
        # Terms that cancel leave the rounding of the terms.
        tolerance += 16 * torch.finfo(dtype).eps
        value = self._value(self._joined(), self._targets)
        if abs(value - mean) <= tolerance:
            return ""
        again = self._value(self._outputs[i], self._parts[i])
        if abs(again - losses[i]) > tolerance:
            raise _NotComparedError("it holds state that each call moves")
        other = math.nan
        with suppress(_NotComparedError):
            other = self._value(self._joined(likeliest=False), self._targets)
        if abs(other - mean) <= tolerance:
            raise _NotComparedError("two dimensions of its outputs may be that of the examples")
        return (
            f"loss_fn: {value:.6g} for the mini-batch, {mean:.6g} as the mean of its "
            f"{len(losses)} parts; return the mean, or Weighted(loss_fn, lambda targets: number of "
            "terms), or take M = D = 1 if it compares examples"
        )

    def _joined(self, *, likeliest: bool = True) -> Tree:
        """The outputs of all micro-batches in one.

        Tensors are joined along the dimension that is as long as the micro-batch, or along
        dimension 0, which may have all tokens. That is the likeliest one, or the least likely. What
        is the same in all micro-batches, such as a weight, is shared.
        """
        trees = [flatten(self._outputs[i]) for i in range(len(self._parts))]
        joined = []
        try:
            if len({repr(skeleton) for _, skeleton in trees}) > 1:
                raise ValueError  # they have numbers, say, that no tensor holds
            for tensors in zip(*(tensors for tensors, _ in trees), strict=True):
                lengths = zip(*(tensor.shape for tensor in tensors), strict=True)
                as_long = [n for n, each in enumerate(lengths) if [*each] == [*self._sizes]]
                if 0 not in as_long and all(torch.equal(tensor, tensors[0]) for tensor in tensors):
                    joined.append(tensors[0])
                else:
                    likely = [*dict.fromkeys([*as_long, 0])]
                    joined.append(torch.cat(tensors, likely[0 if likeliest else -1]))
        except (RuntimeError, ValueError):
            raise _NotComparedError("its outputs cannot be joined") from None
        return unflatten(joined, trees[0][1])

    def _value(self, outputs: Tree, targets: Tree) -> float:
        """The loss, without a trace."""
        unchanged = state_preserved(*reachable(self._loss))
        with torch.no_grad(), unchanged, rng.trial(self._runner.device) as has_drawn:
            try:
                with self._runner.region:
                    # It may write to its targets, and to outputs no loss does.
                    loss = self._loss(outputs, map_leaves(Tensor, copied, unwrapped(targets)))
                value = float(loss[0] if isinstance(loss, tuple) else loss)
            except Exception as error:  # it only fits micro-batches, or there is too little memory
                what = f"it raises {type(error).__name__}: {short(error, quote=False)}"
                raise _NotComparedError(what) from error
            if has_drawn():
                raise _NotComparedError("it draws random numbers")
        return value
