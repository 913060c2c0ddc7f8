"""Memory of one rank through the actions of a step, and the moment when it is greatest.

Where backwards are split into I and W, a micro-batch is counted as if I freed nothing and W freed
what B frees. So it takes as much from I to W as from F to I. For a layer of a Transformer that is
too much: Table 1 of arXiv:2401.10241 has 32 s b h bytes from I to W, and 34 s b h + 5 a s^2 b
before I, with sequence length s, micro-batch size b, width h and a heads.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from repro.costs.counter import Counter
from repro.costs.fake import mini_batch
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
from repro.gpipe.schedule.actions import GRADIENT, Action, Schedule


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
class Task:
    """A rank of a schedule, with the layers of each stage that it holds, on meta tensors."""

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

    @property
    def stages(self) -> dict[int, range]:
        """The stages that the rank holds, with their layers."""
        K = len(self.schedule.ranks)
        return dict(zip(range(self.rank, self.schedule.stages, K), self.layers, strict=True))

    def keys(self, counter: Counter) -> dict[int, Hashable]:
        """Stage -> a key that is equal for stages whose micro-batches do the same.

        Such a stage may be one of another model.
        """
        size = sizes(batch_size(self.inputs), self.schedule.micro_batches)[0]
        boundaries = counter.boundaries(micro_batch(self.inputs, size))
        last = self.schedule.stages - 1
        return {
            stage: (
                counter.kinds[layers.start : layers.stop],
                boundaries[layers.start].key,
                stage == 0,
                stage == last,
            )
            for stage, layers in self.stages.items()
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


def peak_memory(counter: Counter, task: Task) -> StageMemory:
    """Memory of one rank at the peak of a step."""
    keys = task.keys(counter)
    key = tuple(keys.values()), task.step
    if key not in counter.memo:
        counter.memo[key] = _Walk(counter, task, keys).find_peak()
    return counter.memo[key]


class _Sent(NamedTuple):
    """Bytes of the messages of a micro-batch on a stage; 0 where there is none."""

    inputs: int
    outputs: int
    gradients_in: int
    gradients_out: int


class _Walk:
    """Sums up memory over the actions of a rank."""

    def __init__(self, counter: Counter, task: Task, keys: Mapping[int, Hashable]) -> None:
        self._counter = counter
        self._task = task
        self._keys = keys
        self._stages = task.stages
        self._actions = task.schedule.ranks[task.rank]
        self._messages = task.messages
        self._is_alone = len(task.schedule.ranks) == 1
        self._last = task.schedule.stages - 1
        receives = [action for action in reversed(self._actions) if action.kind == "Recv"]
        # Stages of the messages that are still to be received, the next one last.
        self._due_inputs = [a.stage for a in receives if a.of == "F"]
        self._due_gradients = [a.stage for a in receives if a.of in GRADIENT]
        self._arrived = 0  # bytes of gradients that have arrived before their B
        self._sending = 0  # bytes that are still being sent during the next action
        self._sent = cache(self._count_sent)

    def find_peak(self) -> StageMemory:
        """Memory of all kinds at the moment when their sum is greatest."""
        micro_batch_sizes = sizes(batch_size(self._task.inputs), self._task.schedule.micro_batches)
        # The stages and micro-batches whose F keeps no graph.
        recomputed = {action.cell for action in self._actions if action.kind == "R"}
        had_backward: set[int] = set()  # stages
        now = self._at_rest()
        most = StageMemory(tuple(now), "start")
        for action in self._actions:
            kind, (stage, i) = action.kind, action.cell
            if kind == "U":
                layers = [n for layers in self._task.layers for n in layers]
                now[OPTIMIZER] += max((self._counter.resident(n).update for n in layers), default=0)
                if sum(now) > most.total:
                    most = StageMemory(tuple(now), "U")
                continue
            size = micro_batch_sizes[i]
            if kind == "Recv":
                now[BOUNDARY] += self._receive(action, size)
            elif kind == "Send":
                self._send(action, size, recomputed=action.cell in recomputed)
            else:
                fresh = stage not in had_backward
                effect = self._effects(stage, size, action.cell in recomputed, fresh)[kind]
                peak = [a + b for a, b in zip(now, effect.peak, strict=True)]
                peak[MESSAGES] += self._crossing(action, size)
                if sum(peak) > most.total:
                    most = StageMemory(tuple(peak), action.label)
                now = [a + b for a, b in zip(now, effect.after, strict=True)]
                if kind in ("B", "W"):
                    had_backward.add(stage)
                    now[BOUNDARY] -= self._sent(stage, size).inputs
                now[BOUNDARY] += self._hand_on(action, size)
        return most

    def _at_rest(self) -> list[int]:
        """Bytes of each kind when the step begins."""
        resident = [self._counter.resident(n) for layers in self._task.layers for n in layers]
        now = [0] * len(KINDS)
        now[PARAMETERS] = sum(r.parameters for r in resident)
        now[BUFFERS] = sum(r.buffers for r in resident)
        now[OPTIMIZER] = sum(r.optimizer for r in resident)
        if 0 in self._stages:
            now[BOUNDARY] += _nbytes(self._task.inputs)
        if self._last in self._stages:
            now[BOUNDARY] += _nbytes(self._task.targets)
        return now

    # Messages.

    def _count_sent(self, stage: int, size: int) -> _Sent:
        boundaries = self._counter.boundaries(micro_batch(self._task.inputs, size))
        layers = self._stages[stage]
        before, behind = boundaries[layers.start], boundaries[layers.stop]
        is_first, is_last = stage == 0, stage == self._last
        return _Sent(
            inputs=0 if is_first else before.nbytes,
            outputs=0 if is_last else behind.nbytes,
            gradients_in=0 if is_last else behind.gradients,
            gradients_out=0 if is_first else before.gradients,
        )

    def _receive(self, action: Action, size: int) -> int:
        """Bytes of the received inputs."""
        sent = self._sent(action.stage, size)
        if action.of == "F":
            self._due_inputs.pop()
            return sent.inputs
        self._due_gradients.pop()
        self._arrived += sent.gradients_in
        return 0

    def _send(self, action: Action, size: int, *, recomputed: bool) -> None:
        """Note what is sent during the next action."""
        sent = self._sent(action.stage, size)
        nbytes = sent.gradients_out
        if action.of == "F":  # with a graph the outputs are kept anyway
            nbytes = sent.outputs if recomputed else 0
        self._sending = self._messages.sending * nbytes

    def _crossing(self, action: Action, size: int) -> int:
        """Bytes of messages while an action computes, which ends the sending before it."""
        if action.kind in GRADIENT:  # they are counted in the effect of B or I
            self._arrived -= self._sent(action.stage, size).gradients_in
        posted = self._messages.posted
        nbytes = self._sending + self._arrived
        if posted:
            nbytes += sum(self._sent(stage, size).inputs for stage in self._due_inputs[-posted:])
            nbytes += sum(
                self._sent(stage, size).gradients_in for stage in self._due_gradients[-posted:]
            )
        self._sending = 0
        return nbytes

    def _hand_on(self, action: Action, size: int) -> int:
        """Bytes of inputs that an F gives to the next stage, where one rank holds all stages."""
        before, after = action.stage - 1, action.stage + 1
        if self._is_alone and action.kind in GRADIENT and before in self._stages:
            self._arrived += self._sent(before, size).gradients_in
        if self._is_alone and action.kind == "F" and after in self._stages:
            return self._sent(after, size).inputs
        return 0

    # Layers.

    def _effects(self, stage: int, size: int, recompute: bool, fresh: bool) -> Mapping[str, Effect]:
        """What each kind of action does; `fresh`: the parameters have no gradients yet."""
        key = self._keys[stage], size, recompute, fresh
        if key not in self._counter.memo:
            self._counter.memo[key] = self._count_effects(stage, size, recompute, fresh)
        return self._counter.memo[key]

    def _count_effects(
        self, stage: int, size: int, recompute: bool, fresh: bool
    ) -> Mapping[str, Effect]:
        task, counter, layers = self._task, self._counter, self._stages[stage]
        part, copies = micro_batch(task.inputs, size), stage == 0
        inputs = counter.boundaries(part)[layers.start]

        def passes(*, graph: bool, counting: bool) -> list[Pass]:
            traces = [counter.layer(n, part, graph=graph, counting=counting) for n in layers]
            if stage == self._last:
                traces.append(counter.head(part, micro_batch(task.targets, size), graph=graph))
            return traces

        with_graph = passes(graph=True, counting=not recompute)
        forward, backward = effects(with_graph, inputs, graph=True, first=fresh, copies=copies)
        recomputation = forward
        if recompute:
            without = passes(graph=False, counting=True)
            forward, _ = effects(without, inputs, graph=False, copies=copies)
        # I makes no gradients of weights, and keeps for W what B would free.
        peak_of_input_gradient = tuple(
            0 if kind == GRADIENTS else size for kind, size in enumerate(backward.peak)
        )
        return {
            "F": forward,
            "R": recomputation,
            "B": backward,
            "I": Effect(peak_of_input_gradient, NOTHING),
            "W": backward,
        }


def micro_batch(tree: Tree, examples: int) -> Tree:
    """The micro-batch that the first layer, or the loss, gets of a mini-batch: meta tensors."""
    return unwrapped(mini_batch(tree, examples))


def _nbytes(tree: Tree) -> int:
    return sum(t.nbytes for t in flatten(unwrapped(tree))[0])
