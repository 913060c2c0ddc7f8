"""The largest model that fits: cut so that every stage stays within its memory, and grown until none does.

As Table 1 of arXiv:1811.06965v5 does, over (L, D) of AmoebaNet and L of the Transformer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from repro.costs.counter import Counter, Optimizer
from repro.costs.fake import UncountableError, mini_batch
from repro.costs.interpolate import Between, Unlike
from repro.costs.size_ladder import Sizes
from repro.costs.stage_memory import Messages, StageMemory, Task, micro_batch, walk
from repro.costs.trace import Boundary
from repro.gpipe.core.microbatch import Tree, sizes, unwrapped
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import make_schedule
from repro.io.untrusted import message
from repro.models import Model
from repro.models.arguments import UnusableError

# which sizes of a ladder are traced; AmoebaNet-D with D=128 has a cell of its own kind
_SAMPLES = (8, 15, 25)
_PATIENCE = 512  # refused sizes that are tried in a row
_BEYOND = 3  # layers that are looked at behind the first one that does not fit
# arguments of a model -> the stages that it can be cut into
Count = Callable[[Mapping[str, Any]], "Tasks"]


class RefusedError(ValueError):
    """The model refuses a size, or all of them: its own words, one line."""


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
class Refusal:
    """A size that the model refuses, and why."""

    args: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Fit:
    """The answer.

    Attributes:
        best: the largest that fits, if any does.
        above: the next one up; None where the search ended at the last size that is looked at.
        grown: the argument that grows on that ladder; None where there is one size alone.
        limit: the last value of that argument that is looked at.
        unchanged: whether the argument changes neither the parameters nor what stages take.
        refused: what was tried and refused by the model, on all ladders.
    """

    best: Cut | None
    above: Cut | None
    grown: str | None = None
    limit: int = 0
    unchanged: bool = False
    refused: tuple[Refusal, ...] = ()


class Ladder:
    """Sizes of a model from small to large, some of which it may refuse.

    A width that must be a multiple of 8 is such a case: 1 to 7, 9 to 15 and so on are refused, by
    the user's function, by a layer that cannot be built, or by shapes that do not fit together.
    """

    def __init__(self, sizes: Sizes, count: Count) -> None:
        self.sizes = sizes
        self.refused: dict[int, Refusal] = {}
        self._count = count
        self._known: dict[int, Tasks] = {}
        self._grid = 0  # greatest common divisor of the accepted sizes' places, counted from 1

    def __len__(self) -> int:
        return len(self.sizes)

    def tasks(self, index: int) -> "Tasks | None":
        """The stages that this size can be cut into; None if the model refuses it.

        Raises:
            ValueError: one line, if the model cannot be used at any size.
        """
        if index not in self._known and index not in self.refused:
            try:
                self._known[index] = self._count(self.sizes[index])
                self._grid = math.gcd(self._grid, index + 1)
            except (UnusableError, UncountableError):
                raise
            except ValueError as error:
                self.refused[index] = Refusal(self.sizes[index], message(error))
        return self._known.get(index)

    def near(self, wanted: int, low: int, high: int) -> int | None:
        """The accepted size nearest to `wanted` among those strictly between two; None if there seems to be none.

        Multiples of what all accepted sizes share are tried first, so that few refused ones are
        built.
        """

        def key(index: int) -> tuple[bool, int]:
            return (self._grid > 1 and (index + 1) % self._grid != 0, abs(index - wanted))

        candidates = sorted(range(low + 1, high), key=key)
        return next(
            (index for index in candidates[:_PATIENCE] if self.tasks(index) is not None), None
        )

    @property
    def smallest(self) -> int:
        """The smallest size that was looked at and accepted."""
        return min(self._known)

    @property
    def grown(self) -> str | None:
        """The argument that grows; None where there is one size alone."""
        first, last = self.sizes[0], self.sizes[-1]
        return next((name for name in first if first[name] != last[name]), None)

    @property
    def limit(self) -> int:
        """Its last value."""
        return self.sizes[-1][self.grown] if self.grown else 0


class Search:
    """Looks for the largest model of which every stage stays within `memory` bytes.

    Args:
        build: arguments -> the model.
        step: how it is trained.
        memory: bytes of each stage.
        like: another search, whose traces are used.

    Raises:
        ValueError: one line, for any argument out of range, or naming a layer that cannot be
            counted.
    """

    def __init__(
        self, build: Callable[..., Model], step: Step, memory: int, like: "Search | None" = None
    ) -> None:
        self._build = build
        self._step = step
        self._memory = memory
        self._schedule = make_schedule(
            step.schedule, step.stages, step.micro_batches, step.checkpoint
        )
        self._counter: Counter | None = like._counter if like else None
        self._hint = like._hint if like else 0

    def largest(self, families: Iterable[Sizes]) -> Fit:
        """Of several ladders of sizes the model with the most parameters; if none fits, the one that is nearest."""
        families = list(families)
        counts = [self._between(ladder) for ladder in families]
        if any(count != self._exact for count in counts):
            try:
                found = self._chosen([Ladder(*both) for both in zip(families, counts, strict=True)])
                if self._holds(found):
                    return found
            except (Unlike, RefusedError):
                pass  # sizes between those that were traced do not follow from them
        return self._chosen([Ladder(ladder, self._exact) for ladder in families])

    def _chosen(self, ladders: Sequence[Ladder]) -> Fit:
        """The best of the ladders, looked for with their own ways to count, and then traced.

        Raises:
            RefusedError: one line, if the model refuses every size, or what was found between sizes
                that were traced.
            ValueError: one line, if no size has as many layers as there are stages.
        """
        fitting: list[tuple[int, Ladder, int, int]] = []
        lowest: list[Fit] = []
        short: list[int] = []  # layers of ladders that are too shallow
        for ladder in ladders:
            low, high = self._top(ladder)
            tasks = ladder.tasks(low) if low >= 0 else None
            if tasks is not None and len(tasks.counter) >= self._step.stages:
                fitting.append((tasks.counter.parameters, ladder, low, high))
            elif high < len(ladder):
                lowest.append(Fit(None, self._traced(ladder, high), ladder.grown, ladder.limit))
            elif tasks is not None:
                short.append(len(tasks.counter))
        refused = tuple(
            ladder.refused[index] for ladder in ladders for index in sorted(ladder.refused)
        )
        if fitting:
            _, ladder, low, high = max(fitting, key=lambda found: found[0])
            above = self._traced(ladder, high) if high < len(ladder) else None
            best = self._traced(ladder, low)
            return Fit(
                best,
                above,
                ladder.grown,
                ladder.limit,
                self._is_unchanged(ladder, best, above),
                refused,
            )
        if lowest:
            nearest = min(lowest, key=lambda fit: fit.above.fullest if fit.above else math.inf)
            return replace(nearest, refused=refused)
        if short:
            most = max(short)
            raise ValueError(
                f"stages={self._step.stages}: the model has {most} layers; choose at most {most} "
                "stages"
            )
        assert refused, "a ladder has at least one size"
        name = ladders[0].grown
        others = (
            f"; nor is any other {name} up to {refused[-1].args[name]} accepted" if name else ""
        )
        raise RefusedError(refused[0].reason + others)

    def _is_unchanged(self, ladder: Ladder, best: Cut | None, above: Cut | None) -> bool:
        """Whether the smallest size that was looked at is the largest one, although an argument grew."""
        if best is None or above is not None or ladder.grown is None:
            return False
        first = self._traced(ladder, ladder.smallest)
        return (
            first is not None and first.args != best.args and replace(first, args=best.args) == best
        )

    def _traced(self, ladder: Ladder, index: int) -> Cut | None:
        """The model of a size that was found; RefusedError if only sizes around it were built, and it cannot be."""
        try:
            return self.cut(ladder.sizes[index])
        except (UnusableError, UncountableError):
            raise
        except ValueError as error:
            raise RefusedError(message(error)) from error

    def _holds(self, found: Fit) -> bool:
        """Whether what was traced is on its side of the limit."""
        fits = found.best is None or found.best.fullest <= self._memory
        return fits and (found.above is None or found.above.fullest > self._memory)

    def _top(self, ladder: Ladder) -> tuple[int, int]:
        """The last size that fits, -1 if none does, and the next one that the model accepts, or the ladder's length.

        Gallops up or down from where the last search ended, then bisects: `low` fits, `high` does
        not.
        """

        def fits(index: int) -> bool:
            tasks = ladder.tasks(index)
            assert tasks is not None
            return len(tasks.counter) < self._step.stages or tasks.pack(self._memory) is not None

        low, high, step = -1, len(ladder), 1
        here = ladder.near(min(self._hint, high - 1), low, high)
        if here is None and self._hint:  # small sizes may be accepted all the same
            here = ladder.near(0, low, high)
        if here is None:
            return low, high
        if fits(here):
            while here is not None and fits(here):
                low, here = here, ladder.near(min(here + step, len(ladder) - 1), here, len(ladder))
                step *= 2
            high = len(ladder) if here is None else here
        else:
            while here is not None and not fits(here):
                high, here = here, ladder.near(max(here - step, 0), -1, here)
                step *= 2
            low = -1 if here is None else here
        while (here := ladder.near((low + high) // 2, low, high)) is not None:
            low, high = (here, high) if fits(here) else (low, here)
        self._hint = max(low, 0)
        return low, high

    def cut(self, args: Mapping[str, Any]) -> Cut | None:
        """The model of this size, cut as evenly by memory as can be; None if it has fewer layers than stages."""
        tasks = self._exact(args)
        if len(tasks.counter) < self._step.stages:
            return None
        balance = tasks.evenest()
        found = tuple(
            tasks.memory(j, range(a, b))
            for j, (a, b) in enumerate(pairwise([0, *accumulate(balance)]))
        )
        return Cut(dict(args), tasks.counter.parameters, balance, found)

    def _exact(self, args: Mapping[str, Any]) -> "Tasks":
        """A size that is traced.

        Raises:
            ValueError: one line, if the model refuses it, or a layer does on the largest
                micro-batch.
        """
        model = self._build(**args)
        inputs, targets = (mini_batch(few, self._step.batch) for few in model.batch(1, 0))
        self._counter = Counter(
            model.layers, model.loss, self._step.optimizer, self._counter, self._step.device
        )
        self._counter.boundaries(
            micro_batch(inputs, sizes(self._step.batch, self._step.micro_batches)[0])
        )
        return Tasks(self._counter, self._schedule, inputs, targets, self._step.messages)

    def _between(self, ladder: Sizes) -> Count:
        """Sizes that follow from three that are traced; where that saves nothing, or cannot be, all are."""
        if len(ladder) <= _SAMPLES[-1]:
            return self._exact
        samples = [ladder[index] for index in _SAMPLES]
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
        if (
            len(
                {
                    Boundary.of((unwrapped(tasks.inputs), unwrapped(tasks.targets))).key
                    for tasks in traced
                }
            )
            > 1
        ):
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
        return walk(
            self.counter, Task(self.schedule, j, layers, self.inputs, self.targets, self.messages)
        )

    def pack(self, memory: int) -> tuple[int, ...] | None:
        """Fill one stage after the other as far as memory goes; layers of each, None if some are left over.

        A stage of more layers seldom takes less, and then because a narrower tensor crosses behind
        it: see `_filled`.
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
