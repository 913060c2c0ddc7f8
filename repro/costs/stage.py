"""What F, R and B of one micro-batch do to the memory of one stage, put together from its layers' traces.

Who holds which tensor for how long mirrors `repro.gpipe.stage` and `repro.gpipe.engine`: inputs from F to B, what the
graph saves from R to B, outputs and the gradient that arrived until B has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from repro.costs.trace import Boundary, Event, Pass

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


def effects(passes: Sequence[Pass], inputs: Boundary, *, graph: bool) -> tuple[Effect, Effect]:
    """What F (without a graph), or R or F (with one), does on a stage, and what B does then.

    Args:
        passes: of the stage's layers in order; behind those of the last stage that of the head.
        inputs: what the first of them gets; it lies in memory already.
        graph: whether B follows.
    """
    ledger = _Ledger()
    value = [ledger.begin(0, BOUNDARY) for _ in inputs.values]
    for number in value:
        ledger.hold(number)  # kept until B
    numbers: list[dict[int, int]] = []
    for layer in passes:
        known, result = _forward(ledger, layer, value)
        numbers.append(known)
        for number in value:
            ledger.release(number)
        value = result
    if not graph:
        peak = ledger.peak
        for number in value:  # sent
            ledger.release(number)
        return Effect(peak, tuple(ledger.now)), Effect(NOTHING, NOTHING)
    first = Effect(ledger.peak, tuple(ledger.now))
    ledger.mark()
    started = tuple(ledger.now)
    _backward(ledger, passes, numbers)
    for number in value:
        ledger.release(number)
    return first, Effect(_minus(ledger.peak, started), _minus(tuple(ledger.now), started))


def _minus(a: Bytes, b: Bytes) -> Bytes:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _forward(ledger: _Ledger, layer: Pass, value: list[int]) -> tuple[dict[int, int], list[int]]:
    """One layer: its storages in the ledger, and those of what it returns, held by the caller."""
    known = dict(zip(layer.inputs, value, strict=True))
    left = _left(layer.forward) - layer.ended - _ended(layer.backward)
    for number, size in layer.forward:
        if size < 0:
            ledger.release(known[number])
        else:
            known[number] = ledger.begin(size, BUFFERS if number in left else ACTIVATIONS)
    result = [known[number] for number in layer.outputs]
    for number in result:
        ledger.hold(number)
    for number in layer.ended - set(layer.inputs):
        ledger.release(known[number])
    for number in set(layer.inputs) - layer.ended:  # saved
        ledger.hold(known[number])
    return known, result


def _backward(ledger: _Ledger, passes: Sequence[Pass], numbers: list[dict[int, int]]) -> None:
    """All layers, the last one first; what arrives is held until the end, and what is made goes to the caller."""
    arrived: list[int] = []
    grads: list[int | None] = []
    for at, layer in enumerate(reversed(passes)):
        known = numbers[len(passes) - 1 - at]
        sizes = {number: size for number, size in layer.backward if size > 0}
        if not at:
            arrived = [ledger.begin(sizes[number], MESSAGES) for number in layer.returned]
            for number in arrived:
                ledger.hold(number)
            grads = [*arrived]
        given = dict(zip(layer.returned, grads or [None] * len(layer.returned), strict=True))
        known |= {number: mine for number, mine in given.items() if mine is not None}
        made = {number for number in layer.made if number is not None}
        left = _left(layer.backward) - made
        for number, size in layer.backward:
            if size > 0 and number not in known:
                known[number] = ledger.begin(size, GRADIENTS if number in left else ACTIVATIONS)
            elif size < 0 and number not in made:
                ledger.release(known[number])
        grads = [None if number is None else known[number] for number in layer.made]
        for number in grads[:]:
            if number is not None and grads.count(number) > 1:
                ledger.hold(number)
    for number in [*arrived, *(grad for grad in grads if grad is not None)]:  # the latter are sent
        ledger.release(number)


def _left(events: Sequence[Event]) -> set[int]:
    """What begins and does not end."""
    return {number for number, size in events if size > 0} - _ended(events)


def _ended(events: Sequence[Event]) -> set[int]:
    return {number for number, size in events if size < 0}
