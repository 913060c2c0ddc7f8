"""Search for the largest model of which every stage fits into memory.

As in Table 1 of arXiv:1811.06965v5, over (L, D) of AmoebaNet and L of the Transformer.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import inf, sqrt
from operator import itemgetter
from typing import Any

import torch

from repro.costs.counter import Counter, Optimizer
from repro.costs.fake import mini_batch
from repro.costs.size_ladder import Sizes
from repro.costs.stage_memory import Messages, Ranks, StageMemory, micro_batch
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.partition.partition import Cost
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.tree import sizes
from repro.models import Model

Counts = tuple[int, ...]  # layers of each stage
_FIRST = 15  # index of the size that is tried first: D=256 of AmoebaNet, L=16 of the Transformer
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

    @cached_property
    def schedule(self) -> Schedule:
        assert self.config.stages_per_rank == 1  # stages are cut by memory for one on each rank
        return self.config.make_schedule()


@dataclass(frozen=True)
class Cut:
    """A model, cut so that its fullest stage takes as little memory as possible."""

    args: Mapping[str, Any]
    parameters: int
    balance: tuple[int, ...]
    stages: tuple[StageMemory, ...]

    @property
    def fullest(self) -> int:
        return max(stage.total for stage in self.stages)

    def plain(self) -> dict[str, Any]:
        stages = [{"at": stage.at, "total": stage.total, **stage.by_kind} for stage in self.stages]
        return {
            "args": dict(self.args),
            "parameters": self.parameters,
            "balance": list(self.balance),
            "fullest": self.fullest,
            "stages": stages,
        }


@dataclass(frozen=True)
class Tasks(Ranks):
    """The stages that a model can be cut into; each rank holds one."""

    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shallow(self) -> bool:
        return len(self.counter) < self.schedule.stages

    def pack(self, memory: int, cost: Cost | None = None, most: float = inf) -> Counts | None:
        """Fill one stage after the other with as many layers as fit; None if some are left over.

        A stage fits if its peak is at most `memory` bytes and its cost at most `most`.
        """

        def fits(j: int, start: int, count: int) -> bool:
            is_cheap = cost is None or cost(start, start + count) <= most
            return is_cheap and self.peak(j, range(start, start + count)).total <= memory

        K, counts = self.schedule.stages, list[int]()
        start = 0
        for j in range(K - 1):
            left = len(self.counter) - start - (K - 1 - j)  # one is left for each later stage
            count = _filled(partial(fits, j, start), left, counts[-1] if counts else 1)
            if not count:
                return None
            counts.append(count)
            start += count
        rest = len(self.counter) - start
        return (*counts, rest) if rest and fits(K - 1, start, rest) else None

    def cheapest(self, memory: int, cost: Cost) -> Counts | None:
        """The cut that fits and whose most expensive stage costs least, to one part in 500."""
        best = self.pack(memory)
        low = 0.0
        while best is not None:
            high = max(cost(own.start, own.stop) for own in stage_layers(best))
            if high - low <= high / 500:
                break
            middle = (low + high) / 2
            if (found := self.pack(memory, cost, middle)) is None:
                low = middle
            else:
                best = found
        return best

    @cached_property
    def cut(self) -> Cut:
        """The evenest cut of a model that has a layer for each stage, and its memory."""
        balance = self.evenest()
        stages = tuple(self.peaks(balance))
        return Cut(dict(self.args), self.counter.parameters, balance, stages)

    def evenest(self) -> Counts:
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


def _filled(fits: Callable[[int], bool], most: int, guess: int) -> int:
    """The greatest number of layers, up to `most`, that fit into a stage, near to `guess`.

    A stage of more layers seldom takes less memory, but may if a narrower tensor crosses behind it.
    So a few more layers are tried behind the first number that does not fit.
    """
    low, high, step = 0, min(most, guess), 1
    while high < most and fits(high):
        low, high, step = high, min(most, high + step), 2 * step
    fitting = low + bisect_left(range(low + 1, high + 1), True, key=lambda count: not fits(count))
    further = range(min(most, fitting + _BEYOND), fitting, -1)
    return next((count for count in further if fits(count)), fitting)


class Ladder:
    """Sizes of a model from small to large, and how far they fit: the answer of a search.

    Attributes:
        varied: the argument that grows; None if there is a single size.
        limit: the last value of that argument.
        low: index of the last size that fits, or has too few layers for the stages; -1: none.
        high: index of the next size; the number of sizes: none.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.counted: dict[int, Tasks] = {}
        first, last = sizes[0], sizes[-1]
        self.varied = next((name for name in first if first[name] != last[name]), None)
        self.limit = last[self.varied] if self.varied else 0
        self.low, self.high = -1, len(sizes)

    def climb(self, count: Callable[[Mapping[str, Any]], Tasks], memory: int, start: int) -> None:
        """Find `low` and `high`, from the size `start` on."""
        wanted = start
        while self.low + 1 < self.high:
            index = min(max(wanted, self.low + 1), self.high - 1)
            tasks = self.counted[index] = count(self.sizes[index])
            # A model with too few layers for the stages counts as small.
            if tasks.shallow or tasks.pack(memory) is not None:
                self.low = index
            else:
                self.high = index
            wanted = self._wanted(memory)

    def _wanted(self, memory: int) -> int:
        """The size to try next, between `low` and `high`."""
        if self.above is None:
            return 4 * self.low + 3
        if len(self.counted) > _PREDICTED:
            return (self.low + self.high) // 2
        # Weights grow with the square of a width, all else with a width or a number of layers.
        below, above = sqrt(self.best.fullest if self.best else 0), sqrt(self.above.fullest)
        share = (sqrt(memory) - below) / max(1.0, above - below)
        return self.low + round(share * (self.high - self.low))

    @property
    def best(self) -> Cut | None:
        tasks = self.counted.get(self.low)
        return tasks.cut if tasks and not tasks.shallow else None

    @property
    def above(self) -> Cut | None:
        """The next larger one; None if the search ended at the last size."""
        tasks = self.counted.get(self.high)
        return tasks.cut if tasks else None


def largest(
    build: Callable[..., Model], step: Step, memory: int, ladders: Iterable[Sizes]
) -> Ladder:
    """The largest model of which every stage stays within `memory` bytes.

    It is the best of the ladder, of several, on which the model with the most parameters fits. If
    no model fits, it is the one whose next size is nearest to fit. A model that has fewer layers
    than there are stages is a ValueError of one line.
    """
    tried = [Ladder(sizes) for sizes in ladders]
    start = _FIRST
    for ladder in tried:
        ladder.climb(partial(tasks, build, step), memory, start)
        start = max(ladder.low, 0)  # one ladder often ends near where another does
    fitting = [(ladder.best.parameters, ladder) for ladder in tried if ladder.best]
    if fitting:
        return max(fitting, key=itemgetter(0))[1]
    above = [(ladder.above.fullest, ladder) for ladder in tried if ladder.above]
    if above:
        return min(above, key=itemgetter(0))[1]
    deepest = max(len(found.counter) for ladder in tried for found in ladder.counted.values())
    raise ValueError(
        f"stages={step.config.stages}: the model has {deepest} layers; choose at most {deepest} "
        "stages"
    )


def tasks(build: Callable[..., Model], step: Step, args: Mapping[str, Any]) -> Tasks:
    """The stages that the model of a size can be cut into.

    Raises:
        ValueError: one line: a layer refuses the largest micro-batch.
    """
    with torch.device("meta"):  # where a user's modules take no memory
        model = build(**args)
    inputs, targets = (mini_batch(example, step.batch) for example in model.batch(1, 0))
    counter = Counter(model.layers, model.loss, step.optimizer, step.device)
    counter.boundaries(micro_batch(inputs, sizes(step.batch, step.config.micro_batches)[0]))
    return Tasks(counter, step.schedule, inputs, targets, step.messages, args=args)
