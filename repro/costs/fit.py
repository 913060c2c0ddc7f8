"""The largest model that fits: cut so that every stage stays within its memory, and grown until none does.

As Table 1 of arXiv:1811.06965v5 does, over (L, D) of AmoebaNet and L of the Transformer.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from repro.costs.between import Between, Unlike
from repro.costs.count import Counter, Optimizer
from repro.costs.fake import mini_batch
from repro.costs.families import Sizes
from repro.costs.trace import Boundary
from repro.costs.walk import Messages, StageMemory, Task, walk
from repro.gpipe.microbatch import Tree, unwrapped
from repro.gpipe.schedule import Schedule, make_schedule
from repro.models import Model

_SAMPLES = (8, 15, 25)  # which sizes of a ladder are traced; AmoebaNet-D with D=128 has a cell of its own kind
_BEYOND = 3  # layers that are looked at behind the first one that does not fit
Count = Callable[[Mapping[str, Any]], "Tasks"]  # arguments of a model -> the stages that it can be cut into


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
    device: str = "cpu"


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

    def plain(self) -> dict[str, Any]:
        """As JSON, sizes in bytes."""
        stages = [{"at": stage.at, "total": stage.total, **stage.by_kind} for stage in self.stages]
        return {
            "args": dict(self.args),
            "parameters": self.parameters,
            "balance": list(self.balance),
            "fullest": self.fullest,
            "stages": stages,
        }


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
        like: another search, whose traces are used.

    Raises:
        ValueError: one line, for any argument out of range, or naming a layer that cannot be counted.
    """

    def __init__(self, build: Callable[..., Model], step: Step, memory: int, like: "Search | None" = None) -> None:
        self._build = build
        self._step = step
        self._memory = memory
        self._schedule = make_schedule(step.schedule, step.stages, step.micro_batches, step.checkpoint)
        self._counter: Counter | None = like._counter if like else None
        self._hint = like._hint if like else 0

    def largest(self, families: Iterable[Sizes]) -> Fit:
        """Of several ladders of sizes the model with the most parameters; if none fits, the one that is nearest."""
        families = list(families)
        with suppress(Unlike):
            found = self._chosen([(sizes, self._between(sizes)) for sizes in families])
            if self._holds(found):
                return found
        return self._chosen([(sizes, self._exact) for sizes in families])

    def _chosen(self, ladders: Iterable[tuple[Sizes, Count]]) -> Fit:
        """The best of the ladders, looked for with their own ways to count, and then traced.

        Raises:
            ValueError: one line, if no size has as many layers as there are stages.
        """
        fitting: list[tuple[int, Sizes, int]] = []
        lowest: list[Fit] = []
        short = 0
        for sizes, count in ladders:
            top = self._top(sizes, count)
            counter = count(sizes[top]).counter if top >= 0 else None
            if counter is not None and len(counter) >= self._step.stages:
                fitting.append((counter.parameters, sizes, top))
            elif top + 1 < len(sizes):
                lowest.append(Fit(None, self.cut(sizes[top + 1])))
            else:
                short = max(short, len(counter or ()))
        if fitting:
            _, sizes, top = max(fitting, key=lambda found: found[0])
            return Fit(self.cut(sizes[top]), self.cut(sizes[top + 1]) if top + 1 < len(sizes) else None)
        if not lowest:
            raise ValueError(f"stages={self._step.stages}: the model has {short} layers; choose at most {short} stages")
        return min(lowest, key=lambda fit: fit.above.fullest if fit.above else math.inf)

    def _holds(self, found: Fit) -> bool:
        """Whether what was traced is on its side of the limit."""
        fits = found.best is None or found.best.fullest <= self._memory
        return fits and (found.above is None or found.above.fullest > self._memory)

    def _top(self, sizes: Sizes, count: Count) -> int:
        """The last size that fits, -1 if none does.

        Gallops up or down from where the last search ended, then bisects: `low` fits, `high` does not.
        """

        def fits(index: int) -> bool:
            tasks = count(sizes[index])
            return len(tasks.counter) < self._step.stages or tasks.pack(self._memory) is not None

        low, high, step = min(self._hint, len(sizes) - 1), len(sizes), 1
        if fits(low):
            high = low + 1
            while high < len(sizes) and fits(high):
                low, step = high, 2 * step
                high = min(low + step, len(sizes))
        else:
            while low >= 0 and not fits(low):
                high, step = low, 2 * step
                low = max(high - step, -1)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        self._hint = max(low, 0)
        return low

    def cut(self, args: Mapping[str, Any]) -> Cut | None:
        """The model of this size, cut as evenly by memory as can be; None if it has fewer layers than stages."""
        tasks = self._exact(args)
        if len(tasks.counter) < self._step.stages:
            return None
        balance = tasks.evenest()
        found = tuple(tasks.memory(j, range(a, b)) for j, (a, b) in enumerate(pairwise([0, *accumulate(balance)])))
        return Cut(dict(args), tasks.counter.parameters, balance, found)

    def _exact(self, args: Mapping[str, Any]) -> "Tasks":
        """A size that is traced."""
        model = self._build(**args)
        inputs, targets = (mini_batch(few, self._step.batch) for few in model.batch(1, 0))
        self._counter = Counter(model.layers, model.loss, self._step.optimizer, self._counter, self._step.device)
        return Tasks(self._counter, self._schedule, inputs, targets, self._step.messages)

    def _between(self, sizes: Sizes) -> Count:
        """Sizes that follow from three that are traced; where that saves nothing, or cannot be, all are."""
        if len(sizes) <= _SAMPLES[-1]:
            return self._exact
        samples = [sizes[index] for index in _SAMPLES]
        grown = [name for name, value in samples[0].items() if value != samples[1][name]]
        if len(grown) != 1 or any(type(one[grown[0]]) is not int for one in samples):
            return self._exact
        try:
            traced = [self._exact(sample) for sample in samples]
        except ValueError:  # not every size can be built
            return self._exact
        counters = [tasks.counter for tasks in traced if isinstance(tasks.counter, Counter)]
        if len(set(map(len, counters))) > 1 or len({one.kinds for one in counters}) == 1:
            return self._exact  # more of the same layers, or the same
        if len({Boundary.of((unwrapped(tasks.inputs), unwrapped(tasks.targets))).key for tasks in traced}) > 1:
            return self._exact  # it is the data that grows
        at = [sample[grown[0]] for sample in samples]
        known: dict[int, Tasks] = {}

        def count(args: Mapping[str, Any]) -> Tasks:
            size = args[grown[0]]
            if size not in known:
                known[size] = replace(traced[0], counter=Between(counters, at, size))
            return known[size]

        return count


@dataclass(frozen=True)
class Tasks:
    """The stages that a model can be cut into."""

    counter: Counter | Between
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages

    def memory(self, j: int, layers: range) -> StageMemory:
        """Of stage j, made of these layers."""
        return walk(self.counter, Task(self.schedule, j, layers, self.inputs, self.targets, self.messages))

    def pack(self, memory: int) -> tuple[int, ...] | None:
        """Fill one stage after the other as far as memory goes; layers of each, None if some are left over.

        A stage of more layers seldom takes less, and then because a narrower tensor crosses behind it: see `_filled`.
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
        """How many layers fit into stage j; the guess is tried first, and a few beyond what does not fit last."""

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
        return next((more for more in range(min(most, low + _BEYOND), low, -1) if fits(more)), low)

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
