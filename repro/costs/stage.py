"""What F, R and B of one micro-batch do to the memory of one stage, put together from its layers' traces.

Who holds which tensor for how long mirrors `gpipe.core.stage` and `gpipe.core.engine`: inputs from
F to B, what the graph saves from R to B, outputs and the gradient that arrived until B has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from repro.costs.trace import Between, Boundary, Pass

KINDS = ("parameters", "buffers", "gradients", "optimizer", "boundary", "activations", "messages")
PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, BOUNDARY, ACTIVATIONS, MESSAGES = range(len(KINDS))
Bytes = tuple[int, ...]  # one number for each of KINDS
NOTHING: Bytes = (0,) * len(KINDS)


@dataclass(frozen=True)
class Effect:
    """One action's effect on memory, beyond what was there when it began.

    Attributes:
        peak: where the sum is greatest.
        after: what is left when it has ended.
    """

    peak: Bytes
    after: Bytes


class _Ledger:
    """Storages with the number of their holders, and the greatest sum that there has been."""

    def __init__(self) -> None:
        self.now = [0] * len(KINDS)
        self._entries: list[list[int]] = []  # bytes, holders, kind
        self.mark()

    def mark(self) -> None:
        """From here on look for the greatest sum anew."""
        self._total = self._highest = sum(self.now)
        self.peak = tuple(self.now)

    def begin(self, size: int, kind: int) -> int:
        """A new storage with one holder; its number."""
        self._entries.append([size, 1, kind])
        self.now[kind] += size
        self._total += size
        if self._total > self._highest:
            self._highest, self.peak = self._total, tuple(self.now)
        return len(self._entries) - 1

    def pass_over(self, between: Between, left: int) -> None:
        """What begins and ends inside a layer; what is left of it is of the kind `left`."""
        if self._total + sum(between.most) > self._highest:
            self._highest = self._total + sum(between.most)
            self.peak = tuple(
                n + between.most[0] * (kind == ACTIVATIONS) + between.most[1] * (kind == left)
                for kind, n in enumerate(self.now)
            )
        self.now[ACTIVATIONS] += between.net[0]
        self.now[left] += between.net[1]
        self._total += sum(between.net)

    def hold(self, number: int) -> None:
        """One holder more."""
        self._entries[number][1] += 1

    def release(self, number: int) -> None:
        """One holder less."""
        entry = self._entries[number]
        entry[1] -= 1
        if not entry[1]:
            self.now[entry[2]] -= entry[0]
            self._total -= entry[0]


def effects(
    passes: Sequence[Pass],
    inputs: Boundary,
    *,
    graph: bool,
    first: bool = False,
    copies: bool = False,
) -> tuple[Effect, Effect]:
    """What F (without a graph), or R or F (with one), does on a stage, and what B does then.

    Args:
        passes: of the stage's layers in order; behind those of the last stage that of the head.
        inputs: what the first of them gets; it lies in memory already.
        graph: whether B follows.
        first: whether the parameters have no gradients yet.
        copies: whether the layers get copies of the inputs, as on the first stage, where these are
            the user's own.
    """
    ledger = _Ledger()
    kind = ACTIVATIONS if copies else BOUNDARY
    given = [ledger.begin(meta.nbytes if copies else 0, kind) for meta in inputs.tensors]
    for number in given:
        ledger.hold(number)  # by the stage, until its last layer has run
    value = given
    numbers: list[dict[int, int]] = []
    for layer in passes:
        known, result = _forward(ledger, layer, value)
        numbers.append(known)
        for number in value:
            ledger.release(number)
        value = result
    for number in given:
        ledger.release(number)
    if not graph:
        peak = ledger.peak
        for number in value:  # sent
            ledger.release(number)
        return Effect(peak, tuple(ledger.now)), Effect(NOTHING, NOTHING)
    forward = Effect(ledger.peak, tuple(ledger.now))
    ledger.mark()
    started = tuple(ledger.now)
    _backward(ledger, passes, numbers, first=first)
    for number in value:
        ledger.release(number)
    return forward, Effect(_minus(ledger.peak, started), _minus(tuple(ledger.now), started))


def _minus(a: Bytes, b: Bytes) -> Bytes:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _forward(ledger: _Ledger, layer: Pass, value: list[int]) -> tuple[dict[int, int], list[int]]:
    """One layer: its storages in the ledger, and those of what it returns, held by the caller."""
    known = dict(zip(layer.inputs, value, strict=True))
    for step in layer.forward_steps:
        if isinstance(step, Between):
            ledger.pass_over(step, BUFFERS)
        elif step[1] < 0:
            ledger.release(known[step[0]])
        else:
            known[step[0]] = ledger.begin(step[1], ACTIVATIONS)
    result = [known[number] for number in layer.outputs]
    for number in result:
        ledger.hold(number)
    inputs, outputs = set(layer.inputs), set(layer.outputs)
    for number in (layer.ended & outputs) - inputs:
        ledger.release(known[number])
    for number in inputs - layer.ended:  # saved
        ledger.hold(known[number])
    return known, result


def _backward(
    ledger: _Ledger, passes: Sequence[Pass], numbers: list[dict[int, int]], *, first: bool
) -> None:
    """All layers, the last one first; what arrives is held until the end, and what is made is sent."""
    last = passes[-1]
    sizes = {number: size for number, size in last.backward if size > 0}
    arrived = [ledger.begin(sizes[number], MESSAGES) for number in last.returned]
    for number in arrived:
        ledger.hold(number)
    grads: list[int | None] = [*arrived]
    for layer, known in zip(reversed(passes), reversed(numbers), strict=True):
        given = dict(zip(layer.returned, grads or [None] * len(layer.returned), strict=True))
        known |= {number: mine for number, mine in given.items() if mine is not None}
        made = {number for number in layer.made if number is not None}
        # nobody has used that output
        absent = {number for number, mine in given.items() if mine is None} - made
        for step in layer.first_backward_steps if first else layer.backward_steps:
            if isinstance(step, Between):
                ledger.pass_over(step, GRADIENTS)
            elif step[0] in absent:
                continue
            elif step[1] > 0 and step[0] not in known:
                known[step[0]] = ledger.begin(step[1], ACTIVATIONS)
            elif step[1] < 0 and step[0] not in made:
                ledger.release(known[step[0]])
        grads = [None if number is None else known[number] for number in layer.made]
        for n, number in enumerate(grads):
            if number is not None and number in grads[:n]:
                ledger.hold(number)
    for number in [*arrived, *(grad for grad in grads if grad is not None)]:
        ledger.release(number)
