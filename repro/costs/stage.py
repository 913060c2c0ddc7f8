"""What F, R and B of one micro-batch do to the memory of a stage, from the traces of its layers.

Tensors live as long as in `gpipe.core.stage` and `gpipe.core.engine`: inputs from F to B, what the
graph saves from R to B, outputs and received gradients until B has ended.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.costs.trace import InnerStorages, Pass
from repro.gpipe.comm.message import Form

KINDS = ("parameters", "buffers", "gradients", "optimizer", "boundary", "activations", "messages")
PARAMETERS, BUFFERS, GRADIENTS, OPTIMIZER, BOUNDARY, ACTIVATIONS, MESSAGES = range(len(KINDS))
Bytes = tuple[int, ...]  # one number for each of KINDS
NOTHING: Bytes = (0,) * len(KINDS)


@dataclass(frozen=True)
class Effect:
    """Bytes that one action adds to those at its beginning."""

    peak: Bytes  # at the moment when the sum is greatest
    after: Bytes  # when the action has ended


class _Ledger:
    """Storages with reference counts, and the greatest sum of their bytes so far."""

    def __init__(self) -> None:
        self.now = [0] * len(KINDS)
        self._entries: list[list[int]] = []  # bytes, reference count, kind
        self.mark()

    def mark(self) -> None:
        """Begin to look for the greatest sum anew."""
        self._total = self._highest = sum(self.now)
        self.peak = tuple(self.now)

    def begin(self, size: int, kind: int) -> int:
        """Add a storage with one reference; returns its number."""
        self._entries.append([size, 1, kind])
        self.now[kind] += size
        self._total += size
        if self._total > self._highest:
            self._highest, self.peak = self._total, tuple(self.now)
        return len(self._entries) - 1

    def add_inner(self, inner: InnerStorages, kept_kind: int) -> None:
        """Add storages of a layer; those that are kept count as `kept_kind`."""
        highest = self._total + sum(inner.most)
        if highest > self._highest:
            peak = [*self.now]
            peak[ACTIVATIONS] += inner.most[0]
            peak[kept_kind] += inner.most[1]
            self._highest, self.peak = highest, tuple(peak)
        self.now[ACTIVATIONS] += inner.net[0]
        self.now[kept_kind] += inner.net[1]
        self._total += sum(inner.net)

    def hold(self, numbers: Iterable[int]) -> None:
        """Add a reference to each."""
        for number in numbers:
            self._entries[number][1] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """Drop a reference to each; the last one ends the storage."""
        for number in numbers:
            entry = self._entries[number]
            entry[1] -= 1
            if not entry[1]:
                self.now[entry[2]] -= entry[0]
                self._total -= entry[0]


def effects(
    passes: Sequence[Pass],
    inputs: Form,
    *,
    graph: bool,
    first: bool = False,
    copies: bool = False,
) -> tuple[Effect, Effect]:
    """Effects of F (without a graph), or of R or F (with one), and of the B that follows.

    Passes are the traces of the stage's layers in order, and of the loss on the last stage. The
    inputs of the first layer lie in memory already. With `first` the parameters have no gradients
    yet. With `copies` the layers get copies of the inputs, as on the first stage, whose inputs
    belong to the user.
    """
    ledger = _Ledger()
    kind = ACTIVATIONS if copies else BOUNDARY
    received = [ledger.begin(meta.nbytes if copies else 0, kind) for meta in inputs.tensors]
    ledger.hold(received)  # by the stage, until its last layer has run
    value = received
    numbers: list[dict[int, int]] = []
    for layer in passes:
        known, result = _forward(ledger, layer, value)
        numbers.append(known)
        ledger.release(value)
        value = result
    ledger.release(received)
    if not graph:
        peak = ledger.peak
        ledger.release(value)  # sent
        return Effect(peak, tuple(ledger.now)), Effect(NOTHING, NOTHING)
    forward = Effect(ledger.peak, tuple(ledger.now))
    ledger.mark()
    started = tuple(ledger.now)
    _backward(ledger, passes, numbers, first=first)
    ledger.release(value)
    return forward, Effect(_minus(ledger.peak, started), _minus(tuple(ledger.now), started))


def _minus(a: Bytes, b: Bytes) -> Bytes:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _forward(ledger: _Ledger, layer: Pass, value: list[int]) -> tuple[dict[int, int], list[int]]:
    """F of one layer; returns its storages in the ledger, and those of its outputs."""
    known = dict(zip(layer.inputs, value, strict=True))
    for step in layer.forward_steps:
        if isinstance(step, InnerStorages):
            ledger.add_inner(step, BUFFERS)
        elif step[1] < 0:
            ledger.release([known[step[0]]])
        else:
            known[step[0]] = ledger.begin(step[1], ACTIVATIONS)
    result = [known[number] for number in layer.outputs]
    ledger.hold(result)
    inputs, outputs = set(layer.inputs), set(layer.outputs)
    ledger.release(known[number] for number in (layer.ended & outputs) - inputs)
    ledger.hold(known[number] for number in inputs - layer.ended)  # saved for B
    return known, result


def _backward(
    ledger: _Ledger, passes: Sequence[Pass], numbers: list[dict[int, int]], *, first: bool
) -> None:
    """B of all layers, the last one first; received and sent gradients are held until the end."""
    last = passes[-1]
    sizes = {number: size for number, size in last.backward if size > 0}
    arrived = [ledger.begin(sizes[number], MESSAGES) for number in last.returned]
    ledger.hold(arrived)
    gradients: list[int | None] = [*arrived]
    for layer, known in zip(reversed(passes), reversed(numbers), strict=True):
        gradients = _backward_of_layer(ledger, layer, known, gradients, first=first)
    ledger.release(arrived)
    ledger.release(each for each in gradients if each is not None)


def _backward_of_layer(
    ledger: _Ledger,
    layer: Pass,
    known: dict[int, int],
    gradients: list[int | None],
    *,
    first: bool,
) -> list[int | None]:
    """B of one layer: from the gradients of its outputs to those of its inputs.

    They are numbers in the ledger, None where there is none: no later layer has used an output, or
    an input needs none. `known` has the layer's other storages.
    """
    incoming = dict(zip(layer.returned, gradients or [None] * len(layer.returned), strict=True))
    known |= {number: entry for number, entry in incoming.items() if entry is not None}
    made = {number for number in layer.made if number is not None}
    absent = {number for number, entry in incoming.items() if entry is None} - made
    for step in layer.first_backward_steps if first else layer.backward_steps:
        if isinstance(step, InnerStorages):
            ledger.add_inner(step, GRADIENTS)
            continue
        number, size = step
        if number in absent:
            continue
        if size < 0 and number not in made:
            ledger.release([known[number]])
        elif size > 0 and number not in known:
            known[number] = ledger.begin(size, ACTIVATIONS)
    outgoing = [None if number is None else known[number] for number in layer.made]
    ledger.hold(n for i, n in enumerate(outgoing) if n is not None and n in outgoing[:i])
    return outgoing
