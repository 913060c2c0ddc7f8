"""Memory of one rank through the actions of a step, and the moment when it is greatest.

Where backwards are split into I and W, a micro-batch is counted as if I freed nothing and W freed
what B frees. So it takes as much from I to W as from F to I. For a layer of a Transformer that is
too much: Table 1 of arXiv:2401.10241 has 32 s b h bytes from I to W, and 34 s b h + 5 a s^2 b
before I, with sequence length s, micro-batch size b, width h and a heads.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate, pairwise

from repro.costs.counter import Counter
from repro.costs.fake import mini_batch
from repro.costs.interpolate import InterpolatedCounter
from repro.costs.stage import (
    BOUNDARY,
    BUFFERS,
    GRADIENTS,
    KINDS,
    MESSAGES,
    NOTHING,
    OPTIMIZER,
    PARAMETERS,
    Bytes,
    Effect,
    effects,
)
from repro.costs.trace import Pass
from repro.gpipe.core.microbatch import Tree, batch_size, flatten, sizes, unwrapped
from repro.gpipe.schedule.actions import GRADIENT, Action, Cell, Schedule

AnyCounter = Counter | InterpolatedCounter


@dataclass(frozen=True)
class Messages:
    """How many messages occupy memory at an end of a link.

    Attributes:
        posted: receives that are posted ahead and have memory allocated, as over gloo and NCCL; 0
            with shared memory.
        sending: messages of the last action that are still being sent during the next one; 0 where
            the sender copies at once.
    """

    posted: int = 2
    sending: int = 1


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank at the peak of a step: of its stage, or of all stages that it holds.

    Attributes:
        kinds: one number for each of `KINDS`. "boundary": inputs kept from F to B, and the
            mini-batch itself on the first and last rank; "activations": all storages that begin
            inside layers; "messages": messages that are received or sent.
        at: the action of the peak, such as "B31", or "U", the update.
    """

    kinds: Bytes
    at: str

    @property
    def total(self) -> int:
        """Bytes of all kinds together."""
        return sum(self.kinds)

    @property
    def by_kind(self) -> Mapping[str, int]:
        """Kind -> bytes."""
        return dict(zip(KINDS, self.kinds, strict=True))


@dataclass(frozen=True)
class Part:
    """One of the stages that a rank holds.

    Attributes:
        layers: of which it is made.
        is_first: whether it gets the mini-batch.
        is_last: whether it computes the loss.
    """

    layers: range
    is_first: bool
    is_last: bool


@dataclass(frozen=True)
class Task:
    """A rank of a schedule, on a mini-batch of meta tensors.

    Attributes:
        schedule: that it executes.
        rank: its number.
        layers: of each stage that it holds, in order.
        inputs: of the mini-batch.
        targets: of the mini-batch.
        messages: how many of them occupy memory.
    """

    schedule: Schedule
    rank: int
    layers: tuple[range, ...]
    inputs: Tree
    targets: Tree
    messages: Messages

    @classmethod
    def of_ranks(
        cls,
        schedule: Schedule,
        balance: Sequence[int],
        inputs: Tree,
        targets: Tree,
        messages: Messages,
    ) -> "list[Task]":
        """The tasks of all ranks; `balance` has the number of layers of each stage."""
        layers = [range(a, b) for a, b in pairwise([0, *accumulate(balance)])]
        K = len(schedule.ranks)
        return [
            cls(schedule, rank, tuple(layers[rank::K]), inputs, targets, messages)
            for rank in range(K)
        ]

    @cached_property
    def parts(self) -> dict[int, Part]:
        K, last = len(self.schedule.ranks), self.schedule.stages - 1
        stages = range(self.rank, self.schedule.stages, K)
        return {
            stage: Part(layers, stage == 0, stage == last)
            for stage, layers in zip(stages, self.layers, strict=True)
        }

    @property
    def all_layers(self) -> list[int]:
        return [index for layers in self.layers for index in layers]

    def keys(self, counter: AnyCounter) -> dict[int, Hashable]:
        """Stage -> a key that is equal for stages whose micro-batches do the same.

        Such a stage may be one of another model.
        """
        size = sizes(batch_size(self.inputs), self.schedule.micro_batches)[0]
        boundaries = counter.boundaries(micro_batch(self.inputs, size))
        return {
            stage: (
                counter.kinds[part.layers.start : part.layers.stop],
                boundaries[part.layers.start].key,
                part.is_first,
                part.is_last,
            )
            for stage, part in self.parts.items()
        }

    @property
    def step(self) -> Hashable:
        """A key of all else that the memory of a rank depends on."""
        K = len(self.schedule.ranks)
        # Stages by their position on the rank, so that ranks which do the same have equal keys.
        actions = tuple(
            (a.kind, a.of, a.stage // K, a.micro_batch) for a in self.schedule.ranks[self.rank]
        )
        data = _nbytes(self.inputs), _nbytes(self.targets), batch_size(self.inputs)
        return actions, data, self.messages

    @cached_property
    def recomputed(self) -> frozenset[Cell]:
        """The stages and micro-batches whose F keeps no graph."""
        return frozenset(a.cell for a in self.schedule.ranks[self.rank] if a.kind == "R")


@dataclass(frozen=True)
class _MicroBatch:
    """What a micro-batch of one size does on a stage.

    Attributes:
        effects: kind of action -> its effect.
        inputs: bytes of the received activations.
        outputs: bytes of the sent activations.
        gradients_in: bytes of the received gradients.
        gradients_out: bytes of the sent gradients.
    """

    effects: Mapping[str, Effect]
    inputs: int
    outputs: int
    gradients_in: int
    gradients_out: int


def peak_memory(counter: AnyCounter, task: Task) -> StageMemory:
    """Memory of one rank at the peak of a step."""
    keys = task.keys(counter)
    key = tuple(keys.values()), task.step
    if key not in counter.memo:
        counts = cache(partial(_micro_batch, counter, task, keys))
        counter.memo[key] = _find_peak(counter, task, counts)
    return counter.memo[key]


def _find_peak(
    counter: AnyCounter, task: Task, micro_batch_of: Callable[[int, int, bool, bool], _MicroBatch]
) -> StageMemory:
    """Sum up memory over the actions of a rank.

    `micro_batch_of` takes the stage, the size, whether it is recomputed, and whether the stage's
    parameters have no gradients yet.
    """
    micro_batch_sizes = sizes(batch_size(task.inputs), task.schedule.micro_batches)
    now = _at_rest(counter, task)
    most = StageMemory(tuple(now), "start")
    crossing = _Crossing(task)
    had_backward: set[int] = set()  # stages
    fresh = True
    for action in task.schedule.ranks[task.rank]:
        kind, (stage, i) = action.kind, action.cell
        if kind == "U":
            updates = [counter.resident(index).update for index in task.all_layers]
            now[OPTIMIZER] += max(updates, default=0)
            if sum(now) > most.total:
                most = StageMemory(tuple(now), "U")
            continue
        # A Send is of the same micro-batch as the action before it.
        if kind != "Send":
            fresh = stage not in had_backward
        recomputed = action.cell in task.recomputed
        like = micro_batch_sizes[i], recomputed, fresh

        def counts_of(stage: int, like: tuple[int, bool, bool] = like) -> _MicroBatch:
            return micro_batch_of(stage, *like)

        counts = counts_of(stage)
        if kind == "Recv":
            now[BOUNDARY] += crossing.receive(action, counts)
        elif kind == "Send":
            crossing.send(action, counts, recomputed=recomputed)
        else:
            effect = counts.effects[kind]
            peak = [a + b for a, b in zip(now, effect.peak, strict=True)]
            peak[MESSAGES] += crossing.during(action, counts_of)
            if sum(peak) > most.total:
                most = StageMemory(tuple(peak), action.label)
            now = [a + b for a, b in zip(now, effect.after, strict=True)]
            if kind in ("B", "W"):
                had_backward.add(stage)
                now[BOUNDARY] -= counts.inputs
            now[BOUNDARY] += crossing.hand_on(action, counts_of)
    return most


class _Crossing:
    """Bytes of the messages of a rank, while its actions are walked through."""

    def __init__(self, task: Task) -> None:
        actions = task.schedule.ranks[task.rank]
        receives = [action for action in reversed(actions) if action.kind == "Recv"]
        # Stages of the messages that are still to be received, the next one last.
        self._due_inputs = [a.stage for a in receives if a.of == "F"]
        self._due_gradients = [a.stage for a in receives if a.of in GRADIENT]
        self._arrived = 0  # bytes of gradients that have arrived before their B
        self._sending = 0  # bytes that are still being sent during the next action
        self._messages = task.messages
        self._is_alone = len(task.schedule.ranks) == 1
        self._stages = task.parts.keys()

    def receive(self, action: Action, counts: _MicroBatch) -> int:
        """Bytes of the received inputs."""
        if action.of == "F":
            self._due_inputs.pop()
            return counts.inputs
        self._due_gradients.pop()
        self._arrived += counts.gradients_in
        return 0

    def send(self, action: Action, counts: _MicroBatch, *, recomputed: bool) -> None:
        """Note what is sent during the next action."""
        sent = counts.gradients_out
        if action.of == "F":  # with a graph the outputs are kept anyway
            sent = counts.outputs if recomputed else 0
        self._sending = self._messages.sending * sent

    def during(self, action: Action, counts_of: Callable[[int], _MicroBatch]) -> int:
        """Bytes of messages while an action computes, which ends the sending before it."""
        if action.kind in GRADIENT:
            # They are counted in the effect of B or I.
            self._arrived -= counts_of(action.stage).gradients_in
        occupied = self._sending + self._arrived
        for stage in _last(self._due_inputs, self._messages.posted):
            occupied += counts_of(stage).inputs
        for stage in _last(self._due_gradients, self._messages.posted):
            occupied += counts_of(stage).gradients_in
        self._sending = 0
        return occupied

    def hand_on(self, action: Action, counts_of: Callable[[int], _MicroBatch]) -> int:
        """Bytes of inputs that an F gives to the next stage, where one rank holds all stages."""
        before, after = action.stage - 1, action.stage + 1
        if self._is_alone and action.kind in GRADIENT and before in self._stages:
            self._arrived += counts_of(before).gradients_in
        if self._is_alone and action.kind == "F" and after in self._stages:
            return counts_of(after).inputs
        return 0


def _last(values: Sequence[int], count: int) -> Sequence[int]:
    """The last values, at most so many; where `count` is 0 none, unlike a slice from -0."""
    return values[max(0, len(values) - count) :]


def _at_rest(counter: AnyCounter, task: Task) -> list[int]:
    """Bytes of each kind when the step begins."""
    resident = [counter.resident(index) for index in task.all_layers]
    now = [0] * len(KINDS)
    now[PARAMETERS] = sum(r.parameters for r in resident)
    now[BUFFERS] = sum(r.buffers for r in resident)
    now[OPTIMIZER] = sum(r.optimizer for r in resident)
    for part in task.parts.values():
        if part.is_first:
            now[BOUNDARY] += _nbytes(task.inputs)
        if part.is_last:
            now[BOUNDARY] += _nbytes(task.targets)
    return now


def _micro_batch(
    counter: AnyCounter,
    task: Task,
    keys: Mapping[int, Hashable],
    stage: int,
    size: int,
    recompute: bool,
    fresh: bool,
) -> _MicroBatch:
    """`_count_micro_batch`, once for stages with the same layers."""
    key = (keys[stage], size, recompute, fresh)
    if key not in counter.memo:
        counter.memo[key] = _count_micro_batch(
            counter, task, task.parts[stage], size, recompute=recompute, fresh=fresh
        )
    return counter.memo[key]


def _count_micro_batch(
    counter: AnyCounter, task: Task, stage: Part, size: int, *, recompute: bool, fresh: bool
) -> _MicroBatch:
    """What a micro-batch of `size` examples does; `fresh`: the parameters have no gradients yet."""
    part = micro_batch(task.inputs, size)
    inputs = counter.boundaries(part)[stage.layers.start]

    def passes(*, graph: bool, counting: bool) -> list[Pass]:
        traces = [
            counter.layer(index, part, graph=graph, counting=counting) for index in stage.layers
        ]
        if stage.is_last:
            traces.append(counter.head(part, micro_batch(task.targets, size), graph=graph))
        return traces

    outputs = passes(graph=True, counting=False)[-1].result
    forward, backward = effects(
        passes(graph=True, counting=not recompute),
        inputs,
        graph=True,
        first=fresh,
        copies=stage.is_first,
    )
    recomputation = forward
    if recompute:
        forward, _ = effects(
            passes(graph=False, counting=True), inputs, graph=False, copies=stage.is_first
        )
    # I makes no gradients of weights, and keeps for W what B would free.
    peak_of_input_gradient = tuple(
        0 if kind == GRADIENTS else size for kind, size in enumerate(backward.peak)
    )
    return _MicroBatch(
        {
            "F": forward,
            "R": recomputation,
            "B": backward,
            "I": Effect(peak_of_input_gradient, NOTHING),
            "W": backward,
        },
        inputs=0 if stage.is_first else inputs.nbytes,
        outputs=0 if stage.is_last else outputs.nbytes,
        gradients_in=0 if stage.is_last else outputs.gradients,
        gradients_out=0 if stage.is_first else inputs.gradients,
    )


def micro_batch(tree: Tree, examples: int) -> Tree:
    """The micro-batch that the first layer, or the loss, gets of a mini-batch: meta tensors."""
    return unwrapped(mini_batch(tree, examples))


def _nbytes(tree: Tree) -> int:
    return sum(t.nbytes for t in flatten(unwrapped(tree))[0])
