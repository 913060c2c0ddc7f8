"""Memory of one stage through the actions of a step, and the moment when it is greatest.

Where backwards are split into I and W, a micro-batch is counted as if I freed nothing and W freed
what B frees. So it takes as much from I to W as from F to I. For a layer of a Transformer that is
too much: Table 1 of arXiv:2401.10241 has 32 s b h bytes from I to W, and 34 s b h + 5 a s^2 b
before I, with sequence length s, micro-batch size b, width h and a heads.
"""

import collections
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

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
from repro.gpipe.schedule.actions import GRADIENT, Schedule

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
    """Bytes of one stage at the peak of a step.

    Attributes:
        kinds: one number for each of `KINDS`. "boundary": inputs kept from F to B, and the
            mini-batch itself on the first and last stage; "activations": all storages that begin
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
class Task:
    """Stage j of a schedule, made of these layers, on a mini-batch of meta tensors.

    The rank holds no other stage.
    """

    schedule: Schedule
    stage: int
    layers: range
    inputs: Tree
    targets: Tree
    messages: Messages

    @property
    def is_first(self) -> bool:
        """Whether the stage gets the mini-batch."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the loss."""
        return self.stage == self.schedule.stages - 1

    def key(self, counter: AnyCounter) -> tuple[Hashable, ...]:
        """A key that is equal for tasks whose micro-batches do the same, also in another model."""
        size = sizes(batch_size(self.inputs), self.schedule.micro_batches)[0]
        arriving = counter.boundaries(micro_batch(self.inputs, size))[self.layers.start]
        return (
            counter.kinds[self.layers.start : self.layers.stop],
            arriving.key,
            self.is_first,
            self.is_last,
        )

    @property
    def step(self) -> Hashable:
        """A key of all else that the memory of a stage depends on."""
        actions = tuple((a.kind, a.of, a.micro_batch) for a in self.schedule.ranks[self.stage])
        data = _nbytes(self.inputs), _nbytes(self.targets), batch_size(self.inputs)
        return actions, data, self.messages

    @cached_property
    def recomputed(self) -> frozenset[int]:
        """The micro-batches whose F keeps no graph."""
        return self.schedule.recomputed(self.stage)


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
    """Memory of one stage at the peak of a step."""
    layers = task.key(counter)
    key = layers, task.step
    if key not in counter.memo:
        counts = cache(partial(_micro_batch, counter, task, layers))
        counter.memo[key] = _find_peak(counter, task, counts)
    return counter.memo[key]


def _find_peak(
    counter: AnyCounter, task: Task, micro_batch_of: Callable[[int, bool, bool], "_MicroBatch"]
) -> StageMemory:
    """Sum up memory over the actions of a rank; `micro_batch_of` takes size, recomputed, fresh."""
    assert task.schedule.stages_per_rank == 1, (
        "the memory of ranks that hold several stages is not counted yet"
    )
    actions = task.schedule.ranks[task.stage]
    micro_batch_sizes = sizes(batch_size(task.inputs), task.schedule.micro_batches)
    now = _at_rest(counter, task)
    most = StageMemory(tuple(now), "start")
    # Messages that are still to be received.
    due = collections.Counter(action.of for action in actions if action.kind == "Recv")
    arrived = 0  # bytes of gradients that have arrived before their B
    sending = 0  # bytes that are still being sent during the next action
    # Whether the parameters have no gradients yet; a Send is of the same micro-batch as the action
    # before it.
    fresh, had_backward = True, False
    for action in actions:
        kind, i = action.kind, action.micro_batch
        if kind != "Send":
            fresh = not had_backward
        if kind == "U":
            updates = [counter.resident(index).update for index in task.layers]
            now[OPTIMIZER] += max(updates, default=0)
            if sum(now) > most.total:
                most = StageMemory(tuple(now), "U")
            continue
        recomputed = i in task.recomputed
        counts = micro_batch_of(micro_batch_sizes[i], recomputed, fresh)
        if kind == "Recv":
            due[action.of] -= 1
            if action.of == "F":
                now[BOUNDARY] += counts.inputs
            else:
                arrived += counts.gradients_in
        elif kind == "Send":
            sent = counts.gradients_out
            if action.of == "F":  # with a graph the outputs are kept anyway
                sent = counts.outputs if recomputed else 0
            sending = task.messages.sending * sent
        else:
            if kind in GRADIENT:
                arrived -= counts.gradients_in  # they are counted in the effect of B or I
            effect = counts.effects[kind]
            posted_inputs = min(task.messages.posted, due["F"])
            posted_gradients = min(task.messages.posted, due["B"] + due["I"])
            peak = [a + b for a, b in zip(now, effect.peak, strict=True)]
            peak[MESSAGES] += sending + arrived
            peak[MESSAGES] += posted_inputs * counts.inputs + posted_gradients * counts.gradients_in
            if sum(peak) > most.total:
                most = StageMemory(tuple(peak), action.label)
            now = [a + b for a, b in zip(now, effect.after, strict=True)]
            if kind in ("B", "W"):
                had_backward = True
                now[BOUNDARY] -= counts.inputs
            sending = 0
    return most


def _at_rest(counter: AnyCounter, task: Task) -> list[int]:
    """Bytes of each kind when the step begins."""
    resident = [counter.resident(index) for index in task.layers]
    now = [0] * len(KINDS)
    now[PARAMETERS] = sum(r.parameters for r in resident)
    now[BUFFERS] = sum(r.buffers for r in resident)
    now[OPTIMIZER] = sum(r.optimizer for r in resident)
    if task.is_first:
        now[BOUNDARY] += _nbytes(task.inputs)
    if task.is_last:
        now[BOUNDARY] += _nbytes(task.targets)
    return now


def _micro_batch(
    counter: AnyCounter, task: Task, layers: Hashable, size: int, recompute: bool, fresh: bool
) -> _MicroBatch:
    """`_count_micro_batch`, once for tasks with the same layers."""
    key = (layers, size, recompute, fresh)
    if key not in counter.memo:
        counter.memo[key] = _count_micro_batch(
            counter, task, size, recompute=recompute, fresh=fresh
        )
    return counter.memo[key]


def _count_micro_batch(
    counter: AnyCounter, task: Task, size: int, *, recompute: bool, fresh: bool
) -> _MicroBatch:
    """What a micro-batch of `size` examples does; `fresh`: the parameters have no gradients yet."""
    part = micro_batch(task.inputs, size)
    inputs = counter.boundaries(part)[task.layers.start]

    def passes(*, graph: bool, counting: bool) -> list[Pass]:
        traces = [
            counter.layer(index, part, graph=graph, counting=counting) for index in task.layers
        ]
        if task.is_last:
            traces.append(counter.head(part, micro_batch(task.targets, size), graph=graph))
        return traces

    outputs = passes(graph=True, counting=False)[-1].result
    forward, backward = effects(
        passes(graph=True, counting=not recompute),
        inputs,
        graph=True,
        first=fresh,
        copies=task.is_first,
    )
    recomputation = forward
    if recompute:
        forward, _ = effects(
            passes(graph=False, counting=True), inputs, graph=False, copies=task.is_first
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
        inputs=0 if task.is_first else inputs.nbytes,
        outputs=0 if task.is_last else outputs.nbytes,
        gradients_in=0 if task.is_last else outputs.gradients,
        gradients_out=0 if task.is_first else inputs.gradients,
    )


def micro_batch(tree: Tree, examples: int) -> Tree:
    """The micro-batch that the first layer, or the loss, gets of a mini-batch: meta tensors."""
    return unwrapped(mini_batch(tree, examples))


def _nbytes(tree: Tree) -> int:
    return sum(t.nbytes for t in flatten(unwrapped(tree))[0])
