"""Search for the largest model of which every stage fits into memory.

As in Table 1 of arXiv:1811.06965v5, over (L, D) of AmoebaNet and L of the Transformer.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch

from repro.costs.counter import Counter, Optimizer
from repro.costs.fake import UncountableError, mini_batch
from repro.costs.size_ladder import Sizes
from repro.costs.stage_memory import Messages, StageMemory, Task, micro_batch, peak_memory
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.microbatch import Tree, sizes
from repro.gpipe.schedule.actions import Schedule
from repro.io.untrusted import message
from repro.models import Model
from repro.models.arguments import UnusableError

_PATIENCE = 512  # refused sizes that are tried in a row
_PREDICTED = 12  # sizes of a ladder that are tried by prediction, then it is bisected
_BEYOND = 3  # layers that are tried behind the first one that does not fit


@dataclass(frozen=True)
class Step:
    """A training step: the settings of the pipeline, and the mini-batch size N.

    The balance of `config` does not count: layers are cut as evenly by memory as possible.
    """

    config: PipelineConfig
    batch: int
    optimizer: Optimizer | None = torch.optim.RMSprop
    messages: Messages = field(default_factory=Messages)
    device: str = "cpu"


@dataclass(frozen=True)
class Cut:
    """A model, cut so that its fullest stage takes as little memory as possible."""

    args: Mapping[str, Any]
    parameters: int
    balance: tuple[int, ...]
    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> int:
        """Bytes of the fullest stage."""
        return max(stage.total for stage in self.stages)

    def plain(self) -> dict[str, Any]:
        """The cut as a JSON object, with sizes in bytes."""
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
    """A size that the model refuses, and the reason."""

    args: Mapping[str, Any]
    reason: str


@dataclass(frozen=True)
class Fit:
    """Result of a search."""

    best: Cut | None  # the largest model that fits, if any does
    above: Cut | None  # the next larger one; None if the search ended at the last size
    varied: str | None = None  # the argument that grows; None if there is a single size
    limit: int = 0  # the last value of that argument
    unchanged: bool = False  # that argument changes neither the parameters nor the memory of stages
    refused: tuple[Refusal, ...] = ()  # of all ladders that were tried


@dataclass(frozen=True)
class Tasks:
    """The stages that a model can be cut into."""

    counter: Counter
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shallow(self) -> bool:
        """Whether the model has fewer layers than there are stages."""
        return len(self.counter) < self.schedule.stages

    def memory(self, j: int, layers: range) -> StageMemory:
        task = Task(self.schedule, j, (layers,), self.inputs, self.targets, self.messages)
        return peak_memory(self.counter, task)

    def pack(self, memory: int) -> tuple[int, ...] | None:
        """Fill one stage after the other with as many layers as fit; None if some are left over."""
        K, counts = self.schedule.stages, []
        start = 0
        for j in range(K - 1):
            most = len(self.counter) - start - (K - 1 - j)  # one is left for each later stage
            guess = counts[-1] if counts else 1
            count = self._filled(j, start, most, memory, guess)
            if not count:
                return None
            counts.append(count)
            start += count
        rest = range(start, len(self.counter))
        if not rest or self.memory(K - 1, rest).total > memory:
            return None
        return (*counts, len(rest))

    def _filled(self, j: int, start: int, most: int, memory: int, guess: int) -> int:
        """The greatest number of layers that fit into stage j; `guess` is tried first.

        A stage of more layers seldom takes less memory, but may if a narrower tensor crosses behind
        it. So a few more layers are tried behind the first number that does not fit.
        """

        def fits(count: int) -> bool:
            return self.memory(j, range(start, start + count)).total <= memory

        low, high, step = 0, min(most, guess), 1
        while fits(high):
            if high == most:
                return most
            low, high, step = high, min(most, high + step), 2 * step
        while high - low > 1:
            middle = (low + high) // 2
            if fits(middle):
                low = middle
            else:
                high = middle
        for count in range(min(most, low + _BEYOND), low, -1):
            if fits(count):
                return count
        return low

    @cached_property
    def cut(self) -> Cut:
        """The evenest cut of a model that has a layer for each stage, and its memory."""
        balance = self.evenest()
        ends = [0, *accumulate(balance)]
        stages = [self.memory(j, range(a, b)) for j, (a, b) in enumerate(pairwise(ends))]
        return Cut(dict(self.args), self.counter.parameters, balance, tuple(stages))

    def evenest(self) -> tuple[int, ...]:
        """The cut whose fullest stage takes the least memory, to one part in a thousand."""
        high = 2**10
        while (best := self.pack(high)) is None:
            high *= 2
        low = high // 2
        while high - low > high // 1000:
            middle = (low + high) // 2
            balance = self.pack(middle)
            if balance is None:
                low = middle
            else:
                high, best = middle, balance
        return best


class Ladder:
    """Sizes of a model from small to large, some of which the model may refuse.

    For example, where a width must be a multiple of 8, the sizes 1 to 7, 9 to 15 and so on are
    refused: by the user's function, by a layer that cannot be built, or by shapes that do not fit
    together.
    """

    def __init__(self, sizes: Sizes, count: Callable[[Mapping[str, Any]], Tasks]) -> None:
        self.sizes = sizes
        self.refused: dict[int, Refusal] = {}
        self.accepted: dict[int, Tasks] = {}
        self._count = count
        first, last = sizes[0], sizes[-1]
        self.varied = next((name for name in first if first[name] != last[name]), None)
        self.limit = last[self.varied] if self.varied else 0
        # The last size that fits (-1: none), and the next accepted one (the length: none).
        self.low, self.high = -1, len(sizes)

    def climb(self, memory: int, start: int, traced: Collection[int]) -> None:
        """Find `low` and `high`; sizes that were traced before are counted in no time."""
        wanted = start
        while (index := self._nearest(wanted)) is not None:
            tasks = self.accepted[index]
            # A model with too few layers for the stages counts as small.
            if tasks.shallow or tasks.pack(memory) is not None:
                self.low = index
            else:
                self.high = index
            wanted = self._predicted(memory, traced)

    def _predicted(self, memory: int, traced: Collection[int]) -> int:
        """The size to try next: the last one that should fit, by those that were counted."""
        if len(self.accepted) > _PREDICTED and self.high < len(self.sizes):
            return (self.low + self.high) // 2
        fullest = [(n, each.cut.fullest) for n, each in self.accepted.items() if not each.shallow]
        # Weights grow with the square of a width, all else with a width or a number of layers.
        points = sorted(fullest, key=lambda point: abs(point[1] - memory))[:3]
        if len(points) < 2:
            points.append((-1, 0))
        between = range(self.low + 1, self.high)
        wanted = self.low + bisect_left(between, memory, key=partial(_polynomial, points))
        if self.high == len(self.sizes):
            wanted = min(wanted, 4 * self.low + 3)
        known = [n for n in traced if n in between and n not in self.accepted]
        if len(points) < 3 and known:
            return min(known, key=lambda n: abs(n - wanted))
        return wanted

    def _nearest(self, wanted: int) -> int | None:
        """The accepted size nearest to `wanted` between low and high, if one is found."""
        nearest = sorted(range(self.low + 1, self.high), key=lambda index: abs(index - wanted))
        for index in nearest[:_PATIENCE]:
            if index not in self.accepted and index not in self.refused:
                try:
                    self.accepted[index] = self._count(self.sizes[index])
                except (UnusableError, UncountableError):
                    raise
                except ValueError as error:
                    self.refused[index] = Refusal(self.sizes[index], message(error))
            if index in self.accepted:
                return index
        return None


def _polynomial(points: Sequence[tuple[int, int]], x: int) -> float:
    """The value at x of the polynomial through these points."""
    return sum(
        y * prod((x - other) / (own - other) for other, _ in points if other != own)
        for own, y in points
    )


class Search:
    """Search for the largest model of which every stage stays within `memory` bytes.

    Traces of another search, `like`, are used again.
    """

    def __init__(
        self, build: Callable[..., Model], step: Step, memory: int, like: "Search | None" = None
    ) -> None:
        self._build = build
        self._step = step
        self._memory = memory
        assert step.config.stages_per_rank == 1  # stages are cut by memory for one on each rank
        self._schedule = step.config.make_schedule()
        self._counter: Counter | None = like._counter if like else None
        self._start = like._start if like else 0  # where the last search ended
        self._traced = {*like._traced} if like else set[int]()

    def largest(self, ladders: Iterable[Sizes]) -> Fit:
        """The model with the most parameters that fits, of several ladders of sizes.

        If no model fits, the `above` of the result is the one that is nearest to fit. The
        ValueError of a model that refuses every size, or has fewer layers than there are stages, is
        one line.
        """
        tried: list[Ladder] = []
        for ladder_sizes in ladders:
            ladder = Ladder(ladder_sizes, self.tasks)
            ladder.climb(self._memory, self._start, self._traced)
            self._start = max(ladder.low, 0)
            self._traced |= ladder.accepted.keys()
            tried.append(ladder)
        refused = tuple(each.refused[index] for each in tried for index in sorted(each.refused))
        best = [(each, each.accepted[each.low]) for each in tried if each.low in each.accepted]
        fitting = [each for each in best if not each[1].shallow]
        if fitting:
            largest, _ = max(fitting, key=lambda each: each[1].counter.parameters)
            return replace(_result(largest), refused=refused)
        above = [(each, each.accepted[each.high]) for each in tried if each.high in each.accepted]
        if above:
            ladder, nearest = min(above, key=lambda each: each[1].cut.fullest)
            return Fit(None, nearest.cut, ladder.varied, ladder.limit, refused=refused)
        if best:
            most = max(len(tasks.counter) for _, tasks in best)
            raise ValueError(
                f"stages={self._schedule.stages}: the model has {most} layers; choose at most "
                f"{most} stages"
            )
        text = refused[0].reason
        if name := tried[0].varied:
            text += f"; nor is any other {name} up to {refused[-1].args[name]} accepted"
        raise ValueError(text)

    def tasks(self, args: Mapping[str, Any]) -> Tasks:
        """The stages that the model of a size can be cut into.

        Raises:
            ValueError: one line: the model refuses the size, or a layer the largest micro-batch.
        """
        step = self._step
        model = self._build(**args)
        inputs, targets = (mini_batch(example, step.batch) for example in model.batch(1, 0))
        self._counter = Counter(
            model.layers, model.loss, step.optimizer, self._counter, step.device
        )
        largest = sizes(step.batch, step.config.micro_batches)[0]
        self._counter.boundaries(micro_batch(inputs, largest))
        return Tasks(self._counter, self._schedule, inputs, targets, step.messages, args)


def _result(ladder: Ladder) -> Fit:
    """What was found on a ladder of which a size fits."""
    best = ladder.accepted[ladder.low].cut
    if ladder.high in ladder.accepted:
        return Fit(best, ladder.accepted[ladder.high].cut, ladder.varied, ladder.limit)
    # Everything fits, so it may be that the smallest and the largest size are the same model.
    smallest = ladder.accepted[min(ladder.accepted)]
    unchanged = len(ladder.accepted) > 1 and not smallest.shallow
    unchanged = unchanged and replace(smallest.cut, args=best.args) == best
    return Fit(best, None, ladder.varied, ladder.limit, unchanged)
