"""Search for the largest model of which every stage fits into memory.

As in Table 1 of arXiv:1811.06965v5, over (L, D) of AmoebaNet and L of the Transformer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
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
    """Result of a search.

    Attributes:
        best: the largest model that fits, if any does.
        above: the next larger one; None if the search ended at the last size of the ladder.
        varied: the argument that grows along the ladder; None if there is a single size.
        limit: the last value of that argument.
        unchanged: whether the argument changes neither the parameters nor the memory of stages.
        refused: sizes of all ladders that were tried and that the model refused.
    """

    best: Cut | None
    above: Cut | None
    varied: str | None = None
    limit: int = 0
    unchanged: bool = False
    refused: tuple[Refusal, ...] = ()


class Ladder:
    """Sizes of a model from small to large, some of which the model may refuse.

    For example, where a width must be a multiple of 8, the sizes 1 to 7, 9 to 15 and so on are
    refused: by the user's function, by a layer that cannot be built, or by shapes that do not fit
    together.
    """

    def __init__(self, sizes: Sizes, count: Callable[[Mapping[str, Any]], "Tasks"]) -> None:
        self.sizes = sizes
        self.refused: dict[int, Refusal] = {}
        self.accepted: dict[int, Tasks] = {}
        self._count = count
        first, last = sizes[0], sizes[-1]
        self.varied = next((name for name in first if first[name] != last[name]), None)
        self.limit = last[self.varied] if self.varied else 0

    def bisect(self, fits: Callable[["Tasks"], bool], start: int) -> tuple[int, int]:
        """The last size that fits (-1: none), and the next accepted one (the length: none).

        The first steps are ever longer ones away from `start`, until both ends are known.
        """
        low, high = -1, len(self.sizes)
        wanted, step = start, 1
        while (index := self._near(wanted, low, high)) is not None:
            if fits(self.accepted[index]):
                low = index
            else:
                high = index
            if high == len(self.sizes):
                wanted = low + step
            elif low == -1:
                wanted = high - step
            else:
                wanted = (low + high) // 2
            step *= 2
        return low, high

    def _near(self, wanted: int, low: int, high: int) -> int | None:
        """The accepted size nearest to `wanted`, strictly between low and high, if one is found."""
        nearest = sorted(range(low + 1, high), key=lambda index: abs(index - wanted))
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
        if step.config.stages_per_rank > 1:
            raise ValueError(
                f"stages_per_rank={step.config.stages_per_rank}: stages are cut by memory for one "
                "on each rank; try schedule='1f1b'"
            )
        self._schedule = step.config.make_schedule()
        self._counter: Counter | None = like._counter if like else None
        self._start = like._start if like else 0  # where the last search ended

    def largest(self, ladders: Iterable[Sizes]) -> Fit:
        """The model with the most parameters that fits, of several ladders of sizes.

        If no model fits, the `above` of the result is the one that is nearest to fit. The
        ValueError of a model that refuses every size, or has fewer layers than there are stages, is
        one line.
        """
        K = self._step.config.stages
        fitting: list[tuple[int, Ladder, int, int]] = []
        too_large: list[tuple[Cut, Ladder]] = []
        depths: list[int] = []  # of models that are too shallow
        tried: list[Ladder] = []
        for ladder_sizes in ladders:
            ladder = Ladder(ladder_sizes, self.tasks)
            tried.append(ladder)
            low, high = ladder.bisect(self._fits, self._start)
            self._start = max(low, 0)
            best = ladder.accepted.get(low)
            if best and len(best.counter) >= K:
                fitting.append((best.counter.parameters, ladder, low, high))
            elif high < len(ladder_sizes):
                above = self.cut(ladder_sizes[high])
                assert above is not None
                too_large.append((above, ladder))
            elif best:
                depths.append(len(best.counter))
        refused = tuple(
            ladder.refused[index] for ladder in tried for index in sorted(ladder.refused)
        )
        if fitting:
            _, ladder, low, high = max(fitting, key=lambda entry: entry[0])
            return replace(self._fit(ladder, low, high), refused=refused)
        if too_large:
            nearest, ladder = min(too_large, key=lambda entry: entry[0].fullest)
            return Fit(None, nearest, ladder.varied, ladder.limit, refused=refused)
        if depths:
            raise ValueError(
                f"stages={K}: the model has {max(depths)} layers; choose at most {max(depths)} "
                "stages"
            )
        text = refused[0].reason
        if name := tried[0].varied:
            text += f"; nor is any other {name} up to {refused[-1].args[name]} accepted"
        raise ValueError(text)

    def _fits(self, tasks: "Tasks") -> bool:
        """Whether stages fit; a model with too few layers for the stages counts as small."""
        is_shallow = len(tasks.counter) < self._step.config.stages
        return is_shallow or tasks.pack(self._memory) is not None

    def _fit(self, ladder: Ladder, low: int, high: int) -> Fit:
        best = self.cut(ladder.sizes[low])
        assert best is not None
        if high < len(ladder.sizes):
            above = self.cut(ladder.sizes[high])
            return Fit(best, above, ladder.varied, ladder.limit)
        # Everything fits, so it may be that the smallest and the largest size are the same model.
        smallest = min(ladder.accepted)
        first = self.cut(ladder.sizes[smallest])
        unchanged = smallest != low and first is not None and replace(first, args=best.args) == best
        return Fit(best, None, ladder.varied, ladder.limit, unchanged)

    def cut(self, args: Mapping[str, Any]) -> Cut | None:
        """The model of a size, cut evenly by memory; None if it has fewer layers than stages."""
        tasks = self.tasks(args)
        if len(tasks.counter) < self._step.config.stages:
            return None
        balance = tasks.evenest()
        ends = [0, *accumulate(balance)]
        stages = [tasks.memory(j, range(a, b)) for j, (a, b) in enumerate(pairwise(ends))]
        return Cut(dict(args), tasks.counter.parameters, balance, tuple(stages))

    def tasks(self, args: Mapping[str, Any]) -> "Tasks":
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
        return Tasks(self._counter, self._schedule, inputs, targets, self._step.messages)


@dataclass(frozen=True)
class Tasks:
    """The stages that a model can be cut into."""

    counter: Counter
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages

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
