"""One stage's memory through the actions of a step, and the moment at which it is greatest."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial

from repro.costs.counter import Counter
from repro.costs.fake import mini_batch
from repro.costs.interpolate import Between
from repro.costs.stage import (
    BOUNDARY,
    BUFFERS,
    KINDS,
    MESSAGES,
    OPTIMIZER,
    PARAMETERS,
    Bytes,
    Effect,
    effects,
)
from repro.costs.trace import Pass
from repro.gpipe.core.microbatch import Tree, batch_size, flatten, sizes, unwrapped
from repro.gpipe.schedule.actions import Schedule

Source = Counter | Between


@dataclass(frozen=True)
class Messages:
    """How many messages occupy memory at an end of a link.

    Attributes:
        posted: receives that are posted ahead, with room for what will come, as over gloo and NCCL;
            in shared memory there are none.
        sending: of the last action, still on their way during the next one; 0 where the sender's
            copy is made at once.
    """

    posted: int = 2
    sending: int = 1


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage when they are most.

    Attributes:
        kinds: one number for each of `KINDS`. "boundary": inputs kept from F to B, on the first and
            the last stage the mini-batch itself; "activations": all that begins inside layers;
            "messages": what arrives and leaves.
        at: during which action that is, such as "B31", or "U", the update.
    """

    kinds: Bytes
    at: str

    @property
    def total(self) -> int:
        """All kinds together."""
        return sum(self.kinds)

    @property
    def by_kind(self) -> Mapping[str, int]:
        """Name of the kind -> bytes."""
        return dict(zip(KINDS, self.kinds, strict=True))


@dataclass(frozen=True)
class Task:
    """Which stage of which step: stage j of a schedule, made of these layers, on a mini-batch of meta tensors.

    The rank holds no other stage.
    """

    schedule: Schedule
    stage: int
    layers: range
    inputs: Tree
    targets: Tree
    messages: Messages

    @property
    def first(self) -> bool:
        """Whether the mini-batch comes in here."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether the loss is computed here."""
        return self.stage == self.schedule.stages - 1

    def key(self, counter: Source) -> tuple[Hashable, ...]:
        """Equal for tasks whose micro-batches do the same, also of another model of the same kinds of layers."""
        size = sizes(batch_size(self.inputs), self.schedule.micro_batches)[0]
        arriving = counter.boundaries(micro_batch(self.inputs, size))[self.layers.start]
        return (
            counter.kinds[self.layers.start : self.layers.stop],
            arriving.key,
            self.first,
            self.last,
        )

    @property
    def step(self) -> Hashable:
        """All else that the memory of a stage depends on."""
        actions = tuple((a.kind, a.of, a.micro_batch) for a in self.schedule.ranks[self.stage])
        data = _nbytes(self.inputs), _nbytes(self.targets), batch_size(self.inputs)
        return actions, data, self.messages

    @cached_property
    def recomputed(self) -> frozenset[int]:
        """The micro-batches whose F keeps no graph."""
        return self.schedule.recomputed(self.stage)


@dataclass(frozen=True)
class _Part:
    """What a micro-batch of one size does here: effects by kind of action, and bytes that arrive and leave."""

    effects: Mapping[str, Effect]
    inputs: int
    outputs: int
    returning: int
    returned: int


def walk(counter: Source, task: Task) -> StageMemory:
    """Memory of one stage at the peak of a step."""
    what = task.key(counter)
    key = what, task.step
    if key not in counter.memo:
        counter.memo[key] = _walked(counter, task, cache(partial(_part, counter, task, what)))
    return counter.memo[key]


def _walked(
    counter: Source, task: Task, part_of: Callable[[int, bool, bool], "_Part"]
) -> StageMemory:
    """Go through the actions of the rank that holds a stage."""
    assert task.schedule.stages_per_rank == 1, (
        "the memory of ranks that hold several stages is not counted yet"
    )
    actions = task.schedule.ranks[task.stage]
    cut = sizes(batch_size(task.inputs), task.schedule.micro_batches)
    now = _at_rest(counter, task)
    most = StageMemory(tuple(now), "start")
    due = dict.fromkeys("FB", 0)  # messages that are still to be received
    for action in actions:
        if action.kind == "Recv":
            due[action.of] += 1
    arrived = 0  # bytes of gradients that are here before their B
    sending = 0  # bytes that are on their way during the next action
    fresh, differentiated = True, False
    for action in actions:
        kind, i = action.kind, action.micro_batch
        if kind != "Send":  # which is about the same micro-batch as the action before it
            fresh = not differentiated
        if kind == "U":
            now[OPTIMIZER] += max(
                (counter.resident(index).update for index in task.layers), default=0
            )
            most = max(most, StageMemory(tuple(now), "U"), key=lambda moment: moment.total)
            continue
        recomputed = i in task.recomputed
        part = part_of(cut[i], recomputed, fresh)
        if kind == "Recv":
            due[action.of] -= 1
            now[BOUNDARY] += part.inputs * (action.of == "F")
            arrived += part.returning * (action.of == "B")
        elif kind == "Send":
            # With a graph the outputs are kept anyway.
            sending = task.messages.sending * (
                part.outputs * recomputed if action.of == "F" else part.returned
            )
        else:
            if kind == "B":
                arrived -= part.returning  # counted in the effect of B
                differentiated = True
            ahead = {of: min(task.messages.posted, count) for of, count in due.items()}
            peak = [a + b for a, b in zip(now, part.effects[kind].peak, strict=True)]
            peak[MESSAGES] += (
                sending + arrived + ahead["F"] * part.inputs + ahead["B"] * part.returning
            )
            if sum(peak) > most.total:
                most = StageMemory(tuple(peak), action.label)
            now = [a + b for a, b in zip(now, part.effects[kind].after, strict=True)]
            if kind == "B":
                now[BOUNDARY] -= part.inputs
            sending = 0
    return most


def _at_rest(counter: Source, task: Task) -> list[int]:
    """What is there when the step begins."""
    resident = [counter.resident(index) for index in task.layers]
    now = [0] * len(KINDS)
    now[PARAMETERS] = sum(r.parameters for r in resident)
    now[BUFFERS] = sum(r.buffers for r in resident)
    now[OPTIMIZER] = sum(r.optimizer for r in resident)
    now[BOUNDARY] = task.first * _nbytes(task.inputs) + task.last * _nbytes(task.targets)
    return now


def _part(
    counter: Source, task: Task, what: Hashable, size: int, recompute: bool, fresh: bool
) -> _Part:
    """What a micro-batch of this size does on the stage; `fresh` if no gradients are there yet."""
    key = (what, size, recompute, fresh)
    if key not in counter.memo:
        counter.memo[key] = _counted(counter, task, size, recompute=recompute, fresh=fresh)
    return counter.memo[key]


def _counted(counter: Source, task: Task, size: int, *, recompute: bool, fresh: bool) -> _Part:
    part = micro_batch(task.inputs, size)
    inputs = counter.boundaries(part)[task.layers.start]

    def passes(*, graph: bool, counting: bool) -> list[Pass]:
        found = [
            counter.layer(index, part, graph=graph, counting=counting) for index in task.layers
        ]
        if task.last:
            found.append(counter.head(part, micro_batch(task.targets, size), graph=graph))
        return found

    outputs = passes(graph=True, counting=False)[-1].result
    forward, backward = effects(
        passes(graph=True, counting=not recompute),
        inputs,
        graph=True,
        first=fresh,
        copies=task.first,
    )
    again = forward
    if recompute:
        forward, _ = effects(
            passes(graph=False, counting=True), inputs, graph=False, copies=task.first
        )
    return _Part(
        {"F": forward, "R": again, "B": backward},
        inputs=0 if task.first else inputs.nbytes,
        outputs=0 if task.last else outputs.nbytes,
        returning=0 if task.last else outputs.gradients,
        returned=0 if task.first else inputs.gradients,
    )


def micro_batch(tree: Tree, examples: int) -> Tree:
    """What the first layer, or the loss, gets of a mini-batch."""
    return unwrapped(mini_batch(tree, examples))


def _nbytes(tree: Tree) -> int:
    return sum(t.nbytes for t in flatten(unwrapped(tree))[0])
