"""Memory of one rank through the actions of a step, and the moment when it is greatest.

A rank that does what is ready is counted in the order in which it keeps the most, and as if it had
its gradients from the beginning, since in other orders they are there at that moment.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from repro.costs.counter import Counter, Resident
from repro.costs.fake import mini_batch
from repro.costs.stage import (
    BOUNDARY,
    BUFFERS,
    GRADIENTS,
    KINDS,
    MESSAGES,
    OPTIMIZER,
    PARAMETERS,
    Bytes,
    Effect,
    effects,
)
from repro.costs.trace import Pass, gradient_bytes
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.schedule.actions import GRADIENT, Action, Schedule, Work
from repro.gpipe.schedule.ready import Ready
from repro.gpipe.tree import Tree, batch_size, flatten, sizes, unwrapped


@dataclass(frozen=True)
class Messages:
    """How many messages occupy memory at an end of a link."""

    # Receives that are posted ahead, as over gloo and NCCL; 0 with shared memory.
    posted: int = 2
    # Of the last action, still being sent during the next one; 0 where the sender copies at once.
    sending: int = 1


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one rank at the peak of a step: of its stage, or of all stages that it holds.

    Of the kinds, "boundary" has inputs kept from F to B, and the mini-batch itself on the first and
    last rank; "activations" all storages that begin inside layers; "messages" what is received or
    sent.
    """

    kinds: Bytes
    at: str  # the action of the peak, such as "B31", or "U", the update

    @property
    def total(self) -> int:
        return sum(self.kinds)

    def stored_in(self, element_bytes: float) -> "StageMemory":
        """The same memory where elements have so many bytes, and not the 4 of float32.

        The optimizer's state stays in float32, in which it then has a copy of the parameters too.
        """
        if element_bytes == 4:
            return self
        kinds = [round(size * element_bytes / 4) for size in self.kinds]
        kinds[OPTIMIZER] = self.kinds[OPTIMIZER] + self.kinds[PARAMETERS]
        return StageMemory(tuple(kinds), self.at)

    @property
    def by_kind(self) -> Mapping[str, int]:
        return dict(zip(KINDS, self.kinds, strict=True))


@dataclass(frozen=True)
class Ranks:
    """A model, a schedule of its stages, and a mini-batch of meta tensors."""

    counter: Counter
    schedule: Schedule
    inputs: Tree
    targets: Tree
    messages: Messages = Messages()
    element_bytes: float = 4  # as for `StageMemory.stored_in`
    # Whether gradients are copied before they are summed over replicas. The copies count as if all
    # were there at the peak, which is an upper bound.
    copies_gradients: bool = False

    @cached_property
    def peak(self) -> Callable[..., StageMemory]:
        """(rank, layers of each of its stages) -> its memory; a search asks for many twice."""
        return cache(self._peak)

    def _peak(self, rank: int, *layers: range) -> StageMemory:
        walk = _Walk(self, rank, layers)
        memory = self.counter.memory(walk.key, walk.find_peak)
        if self.copies_gradients:
            kinds = [*memory.kinds]
            own = (self.counter.resident(n) for of_stage in layers for n in of_stage)
            kinds[GRADIENTS] += sum(each.parameters for each in own)
            memory = StageMemory(tuple(kinds), memory.at)
        return memory.stored_in(self.element_bytes)

    def peaks(self, balance: Sequence[int]) -> list[StageMemory]:
        """Of all ranks; `balance` has the number of layers of each stage."""
        layers = stage_layers(balance)
        K = len(self.schedule.orders)
        return [self.peak(rank, *layers[rank::K]) for rank in range(K)]


class _Sent(NamedTuple):
    """Bytes of the messages of a micro-batch between two stages."""

    activations: int = 0
    gradients: int = 0


class _Walk:
    """Sums up memory over the actions of a rank."""

    def __init__(self, of: Ranks, rank: int, layers: tuple[range, ...]) -> None:
        self._of, self._counter, self._messages = of, of.counter, of.messages
        schedule, K = of.schedule, len(of.schedule.orders)
        self._rank = rank
        self._is_alone, self._last = K == 1, schedule.stages - 1
        is_fixed = schedule.limit is None
        self._order = schedule.orders[rank] if is_fixed else _fullest_order(schedule, rank)
        self._split = any(kind == "W" for kind, _, _ in self._order)
        self._stages = dict(zip(range(rank, schedule.stages, K), layers, strict=True))
        self._sizes = sizes(batch_size(of.inputs), schedule.micro_batches)
        boundaries = of.counter.boundaries(micro_batch(of.inputs, self._sizes[0]))
        # Stage -> a key that is equal for stages whose micro-batches do the same, also for those of
        # another model.
        self._keys: dict[int, Hashable] = {
            stage: (
                of.counter.kinds[layers.start : layers.stop],
                boundaries[layers.start].key,
                stage == 0,
                stage == self._last,
            )
            for stage, layers in self._stages.items()
        }
        self._arrived = 0  # bytes of gradients that have arrived before their B
        self._sending = 0  # bytes that are still being sent during the next action
        self._sent = cache(self._count_sent)
        self._effects = cache(self._count_effects)

    @property
    def key(self) -> Hashable:
        """A key of all that the memory of the rank depends on."""
        of, K = self._of, len(self._of.schedule.orders)
        # Stages by their position on the rank, so that ranks which do the same have equal keys.
        work = tuple((kind, stage // K, i) for kind, stage, i in self._order)
        data = _nbytes(of.inputs), _nbytes(of.targets), batch_size(of.inputs)
        messages = of.messages, of.schedule.late, self._is_alone
        return tuple(self._keys.values()), work, data, messages

    def find_peak(self) -> StageMemory:
        """Memory of all kinds at the moment when their sum is greatest."""
        actions = [*self._of.schedule.with_messages(self._rank, self._order)]
        receives = [action for action in reversed(actions) if action.kind == "Recv"]
        # Stages of the messages that are still to be received, the next one last.
        self._due_inputs = [a.stage for a in receives if a.of == "F"]
        self._due_gradients = [a.stage for a in receives if a.of in GRADIENT]
        # The stages and micro-batches whose F keeps no graph.
        recomputed = {action.cell for action in actions if action.kind == "R"}
        had_backward = set[tuple[int, bool]]()  # stages, and whether it was W
        resident = [self._counter.resident(n) for layers in self._stages.values() for n in layers]
        now = self._at_rest(resident)
        if self._of.schedule.limit is not None:
            for stage in self._stages:
                had_backward |= {(stage, False), (stage, True)}
                now[GRADIENTS] += self._gradients_of(stage)
        most = StageMemory(tuple(now), "start")
        for action in actions:
            kind, (stage, i) = action.kind, action.cell
            if kind == "U":
                now[OPTIMIZER] += max((each.update for each in resident), default=0)
                if sum(now) > most.total:
                    most = StageMemory(tuple(now), "U")
                continue
            size = self._sizes[i]
            if kind == "Recv":
                now[BOUNDARY] += self._receive(action, size)
            elif kind == "Send":
                self._send(action, size, recomputed=action.cell in recomputed)
            else:
                fresh = [(stage, is_W) not in had_backward for is_W in (False, True)]
                effect = self._effects(stage, size, action.cell in recomputed, *fresh)[kind]
                peak = [a + b for a, b in zip(now, effect.peak, strict=True)]
                peak[MESSAGES] += self._crossing(action, size)
                if sum(peak) > most.total:
                    most = StageMemory(tuple(peak), action.label)
                now = [a + b for a, b in zip(now, effect.after, strict=True)]
                if kind in (*GRADIENT, "W"):
                    had_backward.add((stage, kind == "W"))
                now[BOUNDARY] += self._hand_on(action, size)
        return most

    def _at_rest(self, resident: Sequence[Resident]) -> list[int]:
        now = [0] * len(KINDS)
        now[PARAMETERS] = sum(each.parameters for each in resident)
        now[BUFFERS] = sum(each.buffers for each in resident)
        now[OPTIMIZER] = sum(each.optimizer for each in resident)
        if 0 in self._stages:
            now[BOUNDARY] += _nbytes(self._of.inputs)
        if self._last in self._stages:
            now[BOUNDARY] += _nbytes(self._of.targets)
        return now

    def _gradients_of(self, stage: int) -> int:
        """Bytes of the gradients of a stage's parameters."""
        effect = self._effects(stage, self._sizes[0], False, True, True)
        return sum(effect[kind].after[GRADIENTS] for kind in ("I", "W"))

    # Messages.

    def _count_sent(self, stage: int, size: int) -> _Sent:
        """What crosses between a stage and the one before it."""
        if not 0 < stage <= self._last:
            return _Sent()
        own = stage in self._stages
        first_layer = self._stages[stage].start if own else self._stages[stage - 1].stop
        form = self._counter.boundaries(micro_batch(self._of.inputs, size))[first_layer]
        return _Sent(form.content, gradient_bytes(form))

    def _receive(self, action: Action, size: int) -> int:
        if action.of == "F":
            self._due_inputs.pop()
            return self._sent(action.stage, size).activations
        self._due_gradients.pop()
        self._arrived += self._sent(action.stage + 1, size).gradients
        return 0

    def _send(self, action: Action, size: int, *, recomputed: bool) -> None:
        """Note what is sent during the next action."""
        nbytes = self._sent(action.stage, size).gradients
        if action.of == "F":  # with a graph the outputs are kept anyway
            nbytes = self._sent(action.stage + 1, size).activations if recomputed else 0
        self._sending = self._messages.sending * nbytes

    def _crossing(self, action: Action, size: int) -> int:
        """Bytes of messages while an action computes, which ends the sending before it."""
        if action.kind in GRADIENT:  # they are counted in the effect of B or I
            self._arrived -= self._sent(action.stage + 1, size).gradients
        nbytes = self._sending + self._arrived
        if posted := self._messages.posted:
            inputs, gradients = self._due_inputs[-posted:], self._due_gradients[-posted:]
            nbytes += sum(self._sent(stage, size).activations for stage in inputs)
            nbytes += sum(self._sent(stage + 1, size).gradients for stage in gradients)
        self._sending = 0
        return nbytes

    def _hand_on(self, action: Action, size: int) -> int:
        """Bytes of inputs that an F gives to the next stage, where one rank holds all stages."""
        if self._is_alone and action.kind in GRADIENT:
            self._arrived += self._sent(action.stage, size).gradients
        if self._is_alone and action.kind == "F":
            return self._sent(action.stage + 1, size).activations
        return 0

    # Layers.

    def _count_effects(
        self, stage: int, size: int, recompute: bool, fresh: bool, fresh_weights: bool
    ) -> dict[str, Effect]:
        """What each kind of action does; `fresh`: the parameters have no gradients yet."""
        counter, layers, split = self._counter, self._stages[stage], self._split

        def passes(part: Tree, *, graph: bool, counting: bool) -> list[Pass]:
            how: dict[str, bool] = {"graph": graph, "counting": counting, "split": graph and split}
            traces = [counter.layer(n, part, **how) for n in layers]
            if stage == self._last:
                targets = micro_batch(self._of.targets, size)
                traces.append(counter.head(part, targets, graph=graph))
            return traces

        def count() -> dict[str, Effect]:
            part = micro_batch(self._of.inputs, size)
            return effects(
                passes(part, graph=True, counting=not recompute),
                passes(part, graph=False, counting=True) if recompute else [],
                counter.boundaries(part)[layers.start],
                first=fresh,
                first_weights=fresh_weights,
                copies=stage == 0,
            )

        key = self._keys[stage], size, recompute, fresh, fresh_weights, split
        return counter.memory(key, count)


def _fullest_order(schedule: Schedule, rank: int) -> list[Work]:
    """The works of a rank that does what is ready, in the order in which it keeps the most.

    That is each F as soon as it may come, then the first W when the rank keeps all that it may, and
    from then on each I before another W, so that all that it keeps waits for W.
    """
    rule, order = Ready(schedule, rank), list[Work]()
    while not rule.is_done:
        # No W is done, and it keeps all micro-batches that it may.
        done = rule.done
        is_first_full = done["F"] - done["I"] == rule.most_ahead and done["F"] == rule.limit
        may_F = any(kind == "F" for kind, _, _ in rule.awaited)
        arrives = "F" if may_F or is_first_full else "I"
        work = rule.next(lambda work, arrives=arrives: work[0] == arrives)
        assert work is not None
        order.append(work)
    return order


def micro_batch(tree: Tree, examples: int) -> Tree:
    """The micro-batch that the first layer, or the loss, gets of a mini-batch: meta tensors."""
    return unwrapped(mini_batch(tree, examples))


def _nbytes(tree: Tree) -> int:
    return sum(t.nbytes for t in flatten(unwrapped(tree))[0])
