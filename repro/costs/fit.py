"""Search for the largest model of which every stage fits into memory.

As in Table 1 of arXiv:1811.06965v5, over (L, D) of AmoebaNet and L of the Transformer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from repro.costs.counter import Counter, Optimizer
from repro.costs.fake import UncountableError, mini_batch
from repro.costs.interpolate import InterpolatedCounter, NotPolynomialError
from repro.costs.size_ladder import Sizes
from repro.costs.stage_memory import Messages, StageMemory, Task, micro_batch, peak_memory
from repro.costs.trace import Boundary
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.microbatch import Tree, sizes, unwrapped
from repro.gpipe.schedule.actions import Schedule
from repro.io.untrusted import message
from repro.models import Model
from repro.models.arguments import UnusableError

# Positions of the sizes of a ladder that are traced. 7 is left out: AmoebaNet-D with D=128 has a
# cell unlike those of other sizes.
_SAMPLES = (8, 15, 25)
_PATIENCE = 512  # refused sizes that are tried in a row
_BEYOND = 3  # layers that are tried behind the first one that does not fit
# Arguments of a model -> the stages that it can be cut into.
Count = Callable[[Mapping[str, Any]], "Tasks"]


class RefusedError(ValueError):
    """The model refuses a size, or all of them: the model's own message, one line."""


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
    """A model, cut so that its fullest stage takes as little memory as possible.

    Attributes:
        args: arguments of the model.
        parameters: number of parameters of the whole model.
        balance: layers in each stage.
        stages: memory of each stage.
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

    def __init__(self, sizes: Sizes, count: Count) -> None:
        self.sizes = sizes
        self.refused: dict[int, Refusal] = {}
        self._count = count
        self._known: dict[int, Tasks] = {}
        self._grid = 0  # greatest common divisor of the accepted positions, counted from 1

    def __len__(self) -> int:
        return len(self.sizes)

    def tasks(self, index: int) -> "Tasks | None":
        """The stages that a size can be cut into; None if the model refuses that size.

        Raises:
            ValueError: one line: the model cannot be used at any size.
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
        """The accepted size nearest to `wanted`, strictly between low and high; None if not found.

        Multiples of the common divisor of all accepted sizes are tried first, so that few refused
        sizes are built.
        """

        def key(index: int) -> tuple[bool, int]:
            is_off_grid = self._grid > 1 and (index + 1) % self._grid != 0
            return (is_off_grid, abs(index - wanted))

        for index in sorted(range(low + 1, high), key=key)[:_PATIENCE]:
            if self.tasks(index) is not None:
                return index
        return None

    @property
    def smallest(self) -> int:
        """Position of the smallest size that was tried and accepted."""
        return min(self._known)

    @property
    def varied(self) -> str | None:
        """The argument that grows; None if there is a single size."""
        first, last = self.sizes[0], self.sizes[-1]
        return next((name for name in first if first[name] != last[name]), None)

    @property
    def limit(self) -> int:
        """The last value of the argument that grows."""
        return self.sizes[-1][self.varied] if self.varied else 0


class Search:
    """Search for the largest model of which every stage stays within `memory` bytes.

    Args:
        build: arguments -> the model.
        step: how the model is trained.
        memory: bytes of each stage.
        like: another search, whose traces are used again.

    Raises:
        ValueError: one line: an argument is out of range, or a layer cannot be counted.
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
        self._hint = like._hint if like else 0

    def largest(self, ladders: Iterable[Sizes]) -> Fit:
        """The model with the most parameters that fits, of several ladders of sizes.

        If no model fits, the `above` of the result is the one that is nearest to fit.
        """
        ladders = list(ladders)
        counts = [self._interpolated(sizes) for sizes in ladders]
        if any(count != self._exact for count in counts):
            try:
                interpolated = [Ladder(*pair) for pair in zip(ladders, counts, strict=True)]
                fit = self._best_of(interpolated)
                if self._is_confirmed(fit):
                    return fit
            except (NotPolynomialError, RefusedError):
                pass  # sizes cannot be interpolated: trace each one
        return self._best_of([Ladder(sizes, self._exact) for sizes in ladders])

    def _best_of(self, ladders: Sequence[Ladder]) -> Fit:
        """Search the ladders with their own counts, and trace the chosen sizes.

        Raises:
            RefusedError: one line: the model refuses every size, or the size that was found by
                interpolation.
            ValueError: one line: no size has as many layers as there are stages.
        """
        fitting: list[tuple[int, Ladder, int, int]] = []
        lowest: list[Fit] = []
        shallow: list[int] = []  # numbers of layers below K
        for ladder in ladders:
            low, high = self._top(ladder)
            tasks = ladder.tasks(low) if low >= 0 else None
            if tasks is not None and len(tasks.counter) >= self._step.config.stages:
                fitting.append((tasks.counter.parameters, ladder, low, high))
            elif high < len(ladder):
                lowest.append(Fit(None, self._traced(ladder, high), ladder.varied, ladder.limit))
            elif tasks is not None:
                shallow.append(len(tasks.counter))
        refused = tuple(
            ladder.refused[index] for ladder in ladders for index in sorted(ladder.refused)
        )
        if fitting:
            _, ladder, low, high = max(fitting, key=lambda entry: entry[0])
            above = self._traced(ladder, high) if high < len(ladder) else None
            best = self._traced(ladder, low)
            unchanged = self._is_unchanged(ladder, best, above)
            return Fit(best, above, ladder.varied, ladder.limit, unchanged, refused)
        if lowest:
            nearest = min(lowest, key=lambda fit: fit.above.fullest if fit.above else math.inf)
            return replace(nearest, refused=refused)
        if shallow:
            most = max(shallow)
            raise ValueError(
                f"stages={self._step.config.stages}: the model has {most} layers; choose at most "
                f"{most} stages"
            )
        assert refused, "a ladder has at least one size"
        name = ladders[0].varied
        others = (
            f"; nor is any other {name} up to {refused[-1].args[name]} accepted" if name else ""
        )
        raise RefusedError(refused[0].reason + others)

    def _is_unchanged(self, ladder: Ladder, best: Cut | None, above: Cut | None) -> bool:
        """Whether the smallest and the largest size that were tried have the same counts."""
        if best is None or above is not None or ladder.varied is None:
            return False
        first = self._traced(ladder, ladder.smallest)
        if first is None or first.args == best.args:
            return False
        return replace(first, args=best.args) == best

    def _traced(self, ladder: Ladder, index: int) -> Cut | None:
        """Trace a size; raises a RefusedError if the model refuses it after it was interpolated."""
        try:
            return self.cut(ladder.sizes[index])
        except (UnusableError, UncountableError):
            raise
        except ValueError as error:
            raise RefusedError(message(error)) from error

    def _is_confirmed(self, fit: Fit) -> bool:
        """Whether the traced sizes are on the same sides of the limit as the interpolated ones."""
        if fit.best is not None and fit.best.fullest > self._memory:
            return False
        return fit.above is None or fit.above.fullest > self._memory

    def _top(self, ladder: Ladder) -> tuple[int, int]:
        """The last size that fits (-1: none), and the next that is accepted (the length: none).

        Gallops up or down from where the last search ended, then bisects: `low` fits, `high` does
        not.
        """

        def fits(index: int) -> bool:
            tasks = ladder.tasks(index)
            assert tasks is not None
            return (
                len(tasks.counter) < self._step.config.stages
                or tasks.pack(self._memory) is not None
            )

        low, high, step = -1, len(ladder), 1
        index = ladder.near(min(self._hint, high - 1), low, high)
        if index is None and self._hint:  # small sizes may be accepted all the same
            index = ladder.near(0, low, high)
        if index is None:
            return low, high
        if fits(index):
            while index is not None and fits(index):
                low = index
                index = ladder.near(min(low + step, len(ladder) - 1), low, len(ladder))
                step *= 2
            high = len(ladder) if index is None else index
        else:
            while index is not None and not fits(index):
                high = index
                index = ladder.near(max(high - step, 0), -1, high)
                step *= 2
            low = -1 if index is None else index
        while (index := ladder.near((low + high) // 2, low, high)) is not None:
            if fits(index):
                low = index
            else:
                high = index
        self._hint = max(low, 0)
        return low, high

    def cut(self, args: Mapping[str, Any]) -> Cut | None:
        """The model of a size, cut evenly by memory; None if it has fewer layers than stages."""
        tasks = self._exact(args)
        if len(tasks.counter) < self._step.config.stages:
            return None
        balance = tasks.evenest()
        ends = [0, *accumulate(balance)]
        stages = [tasks.memory(j, range(a, b)) for j, (a, b) in enumerate(pairwise(ends))]
        return Cut(dict(args), tasks.counter.parameters, balance, tuple(stages))

    def _exact(self, args: Mapping[str, Any]) -> "Tasks":
        """Count a size by tracing it.

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

    def _interpolated(self, ladder: Sizes) -> Count:
        """Count sizes by interpolating three traced ones, or `_exact` where that is no use."""
        if len(ladder) <= _SAMPLES[-1]:
            return self._exact
        samples = [ladder[index] for index in _SAMPLES]
        names = [name for name, value in samples[0].items() if value != samples[1][name]]
        if len(names) != 1:
            return self._exact
        varied = names[0]
        if any(type(sample[varied]) is not int for sample in samples):
            return self._exact
        try:
            traced = [self._exact(sample) for sample in samples]
        except ValueError:  # not every size can be built
            return self._exact
        counters = [tasks.counter for tasks in traced if isinstance(tasks.counter, Counter)]
        has_more_layers = len(set(map(len, counters))) > 1
        has_same_layers = len({counter.kinds for counter in counters}) == 1
        if has_more_layers or has_same_layers:  # nothing new has to be traced
            return self._exact
        data = [Boundary.of((unwrapped(task.inputs), unwrapped(task.targets))) for task in traced]
        if len({boundary.key for boundary in data}) > 1:  # the mini-batch grows too
            return self._exact
        at = [sample[varied] for sample in samples]
        known: dict[int, Tasks] = {}

        def count(args: Mapping[str, Any]) -> Tasks:
            size = args[varied]
            if size not in known:
                counter = InterpolatedCounter(counters, at, size)
                known[size] = replace(traced[0], counter=counter)
            return known[size]

        return count


@dataclass(frozen=True)
class Tasks:
    """The stages that a model can be cut into."""

    counter: Counter | InterpolatedCounter
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages

    def memory(self, j: int, layers: range) -> StageMemory:
        task = Task(self.schedule, j, (layers,), self.inputs, self.targets, self.messages)
        return peak_memory(self.counter, task)

    def pack(self, memory: int) -> tuple[int, ...] | None:
        """Fill one stage after the other with as many layers as fit into `memory` bytes.

        Returns:
            Layers of each stage; None if some layers are left over.
        """
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
