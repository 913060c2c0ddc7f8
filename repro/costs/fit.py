"""The largest model that fits: cut so that every stage stays within its memory, and grown until none does.

As Table 1 of arXiv:1811.06965v5 does, over (L, D) of AmoebaNet and L of the Transformer.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch

from repro.costs.count import Counter, Optimizer
from repro.costs.fake import mini_batch
from repro.costs.families import Sizes
from repro.costs.walk import Messages, StageMemory, Task
from repro.gpipe.microbatch import Tree
from repro.gpipe.schedule import Schedule, make_schedule
from repro.models import Model


@dataclass(frozen=True)
class Step:
    """How a step is run: K stages, M micro-batches of N examples together, as `repro.gpipe.Pipeline` takes it."""

    stages: int
    micro_batches: int
    batch: int
    checkpoint: str = "always"
    schedule: str = "gpipe"
    optimizer: Optimizer | None = torch.optim.RMSprop
    messages: Messages = field(default_factory=Messages)


@dataclass(frozen=True)
class Cut:
    """One model, cut so that its fullest stage is as empty as can be.

    Attributes:
        args: of the model.
        parameters: of the whole model.
        balance: layers in each stage.
        stages: memory of each.
    """

    args: Mapping[str, Any]
    parameters: int
    balance: tuple[int, ...]
    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> int:
        """Bytes of the fullest stage."""
        return max(stage.total for stage in self.stages)


@dataclass(frozen=True)
class Fit:
    """The answer: the largest that fits, if any does, and the next one up, if there is one."""

    best: Cut | None
    above: Cut | None


class Search:
    """Looks for the largest model of which every stage stays within `memory` bytes.

    Args:
        build: arguments -> the model.
        step: how it is trained.
        memory: bytes of each stage.
        like: a search with the same loss and optimizer, whose traces are used.

    Raises:
        ValueError: one line, for any argument out of range, or naming a layer that cannot be counted.
    """

    def __init__(self, build: Callable[..., Model], step: Step, memory: int, like: "Search | None" = None) -> None:
        self._build = build
        self._step = step
        self._memory = memory
        self._schedule = make_schedule(step.schedule, step.stages, step.micro_batches, step.checkpoint)
        self._data: tuple[Tree, Tree] | None = None
        self._counter: Counter | None = like._counter if like else None
        self._hint = like._hint if like else 0

    def largest(self, families: Iterable[Sizes]) -> Fit:
        """Of several ladders of sizes the model with the most parameters; if none fits, the one that is nearest."""
        fits = [self._largest(sizes) for sizes in families]
        fitting = [fit for fit in fits if fit.best is not None]
        if fitting:
            return max(fitting, key=lambda fit: fit.best.parameters if fit.best else 0)
        return min(fits, key=lambda fit: fit.above.fullest if fit.above else math.inf)

    def _largest(self, sizes: Sizes) -> Fit:
        """Gallop up or down from where the last search ended, then bisect: `low` fits, `high` does not."""
        low, high, step = min(self._hint, len(sizes) - 1), len(sizes), 1
        if self._fits(sizes[low]):
            high = low + 1
            while high < len(sizes) and self._fits(sizes[high]):
                low, step = high, 2 * step
                high = min(low + step, len(sizes))
        else:
            while low >= 0 and not self._fits(sizes[low]):
                high, step = low, 2 * step
                low = max(high - step, -1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(sizes[middle]) else (low, middle)
        self._hint = max(low, 0)
        best = self.cut(sizes[low]) if low >= 0 else None
        return Fit(best, self.cut(sizes[high]) if high < len(sizes) else None)

    def cut(self, args: Mapping[str, Any]) -> Cut | None:
        """The model of this size, cut as evenly by memory as can be; None if it has fewer layers than stages."""
        counter, inputs, targets = self._counted(args)
        if len(counter) < self._step.stages:
            return None
        tasks = _Tasks(counter, self._schedule, inputs, targets, self._step.messages)
        balance = tasks.evenest()
        found = tuple(tasks.memory(j, range(a, b)) for j, (a, b) in enumerate(pairwise([0, *accumulate(balance)])))
        return Cut(dict(args), counter.parameters, balance, found)

    def _fits(self, args: Mapping[str, Any]) -> bool:
        counter, inputs, targets = self._counted(args)
        tasks = _Tasks(counter, self._schedule, inputs, targets, self._step.messages)
        return len(counter) < self._step.stages or tasks.pack(self._memory) is not None  # too small is no obstacle

    def _counted(self, args: Mapping[str, Any]) -> tuple[Counter, Tree, Tree]:
        model = self._build(**args)
        if self._data is None:  # of the same shape for every size
            few = model.batch(1, 0)
            self._data = mini_batch(few[0], self._step.batch), mini_batch(few[1], self._step.batch)
        self._counter = Counter(model.layers, model.loss, self._step.optimizer, self._counter)
        return self._counter, *self._data


@dataclass(frozen=True)
class _Tasks:
    """The stages that a model can be cut into."""

    counter: Counter
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages

    def memory(self, j: int, layers: range) -> StageMemory:
        """Of stage j, made of these layers."""
        return self.counter.stage(Task(self.schedule, j, layers, self.inputs, self.targets, self.messages))

    def pack(self, memory: int) -> tuple[int, ...] | None:
        """Fill one stage after the other as far as memory goes; layers of each, None if some are left over.

        A stage of more layers never takes less, so what this cannot cut, nothing can.
        """
        K, counts = self.schedule.stages, [1]
        start = 0
        for j in range(K):
            most = len(self.counter) - start - (K - 1 - j)
            if j < K - 1:
                count = self._filled(j, start, most, memory, guess=counts[-1])
            else:  # all that are left
                count = most * (self.memory(j, range(start, start + most)).total <= memory)
            if not count:
                return None
            counts.append(count)
            start += count
        return tuple(counts[1:])

    def _filled(self, j: int, start: int, most: int, memory: int, guess: int) -> int:
        """How many layers fit into stage j; the guess is tried first."""

        def fits(count: int) -> bool:
            return self.memory(j, range(start, start + count)).total <= memory

        low, high, step = 0, min(most, guess), 1
        while fits(high):
            if high == most:
                return most
            low, high, step = high, min(most, high + step), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def evenest(self) -> tuple[int, ...]:
        """The cut whose fullest stage is as empty as can be, to one part in a thousand."""
        high = 2**10
        while (best := self.pack(high)) is None:
            high *= 2
        low = high // 2
        while high - low > high // 1000:
            middle = (low + high) // 2
            found = self.pack(middle)
            low, high, best = (middle, high, best) if found is None else (low, middle, found)
        return best
