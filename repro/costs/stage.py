"""What F, R and B of one micro-batch do to the memory of a stage, from the traces of its layers.

Tensors live as long as in `gpipe.core.stage` and `gpipe.core.engine`: inputs from F to B, what the
graph saves from R to B, outputs and received gradients until B has ended. Where backwards are split
this holds for I, and what W multiplies lives until W.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.costs.trace import Pass, Step
from repro.gpipe.comm.message import Form
from repro.gpipe.core.split import AT_ONCE

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
    """Storages with reference counts, and the greatest sum of their bytes during an action."""

    def __init__(self) -> None:
        self._entries: list[list[int]] = []  # bytes, reference count, kind
        self.begin_action()

    def begin_action(self) -> None:
        self._now = [0] * len(KINDS)
        self._highest = 0
        self._peak = NOTHING

    def effect(self) -> Effect:
        return Effect(self._peak, tuple(self._now))

    def enter(self, size: int, kind: int) -> int:
        """Note a storage that lies in memory already, with one reference; returns its number."""
        self._entries.append([size, 1, kind])
        return len(self._entries) - 1

    def begin(self, size: int, kind: int) -> int:
        """Add a storage with one reference; returns its number."""
        self._now[kind] += size
        self._note_peak()
        return self.enter(size, kind)

    def change_inner(self, step: Step, kept_kind: int) -> None:
        """Add and end storages of a layer; those that stay count as `kept_kind`."""
        self._now[ACTIVATIONS] += step.size
        self._now[kept_kind] += step.kept
        self._note_peak()

    def _note_peak(self) -> None:
        total = sum(self._now)
        if total > self._highest:
            self._highest, self._peak = total, tuple(self._now)

    def hold(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._entries[number][1] += 1

    def release(self, numbers: Iterable[int]) -> None:
        """Drop a reference to each; the last one ends the storage."""
        for number in numbers:
            entry = self._entries[number]
            entry[1] -= 1
            if not entry[1]:
                self._now[entry[2]] -= entry[0]


def effects(
    with_graph: Sequence[Pass],
    without_graph: Sequence[Pass],
    inputs: Form,
    *,
    first: bool,
    first_weights: bool,
    copies: bool,
) -> dict[str, Effect]:
    """Effect of each kind of action; if the traces are of I and W, "B" is I.

    Passes are the traces of the stage's layers in order, and of the loss on the last stage; those
    without a graph are of F, and empty where no R follows. The inputs of the first layer lie in
    memory already. With `first` the parameters have no gradients yet before B, with `first_weights`
    before W. With `copies` the layers get copies of the inputs, as on the first stage, whose inputs
    belong to the user; an F without a graph gets them on each stage.
    """
    ledger = _Ledger()
    received, known, outputs = _forward(ledger, with_graph, inputs, copies=copies)
    forward = recomputation = ledger.effect()
    ledger.begin_action()
    _backward(ledger, with_graph, known, first=first)
    ledger.release(outputs)
    if not copies:
        ledger.release(received)
    backward = ledger.effect()
    ledger.begin_action()
    _weights(ledger, with_graph, known, first=first_weights)
    weights = ledger.effect()
    if without_graph:
        ledger = _Ledger()
        _, _, outputs = _forward(ledger, without_graph, inputs, copies=True)
        ledger.release(outputs)  # sent
        forward = ledger.effect()
    return {"F": forward, "R": recomputation, "B": backward, "I": backward, "W": weights}


def _forward(
    ledger: _Ledger, passes: Sequence[Pass], inputs: Form, *, copies: bool
) -> tuple[list[int], list[dict[int, int]], list[int]]:
    """F of all layers: inputs, the storages of each layer in the ledger, and the last outputs."""
    kind = ACTIVATIONS if copies else BOUNDARY
    add = ledger.begin if copies else ledger.enter
    received = [add(meta.nbytes, kind) for meta in inputs.tensors]
    ledger.hold(received)  # by the stage, until its last layer has run
    value = received
    of_layers: list[dict[int, int]] = []
    for layer in passes:
        known = dict(zip(layer.inputs, value, strict=True))
        for step in layer.forward:
            if step.number is None:
                ledger.change_inner(step, BUFFERS)
            elif step.size < 0:
                ledger.release([known[step.number]])
            else:
                known[step.number] = ledger.begin(step.size, ACTIVATIONS)
        # A parameter or a buffer that is handed on, or a view of one, lies in memory anyway.
        known |= {n: ledger.begin(0, ACTIVATIONS) for n in set(layer.outputs) - known.keys()}
        result = [known[number] for number in layer.outputs]
        ledger.hold(result)
        given, outputs = set(layer.inputs), set(layer.outputs)
        ledger.release(known[number] for number in (layer.ended & outputs) - given)
        ledger.hold(known[number] for number in given - layer.ended)  # saved for B
        ledger.release(value)
        of_layers.append(known)
        value = result
    if copies:  # received inputs stay until the backward
        ledger.release(received)
    return received, of_layers, value


def _backward(
    ledger: _Ledger, passes: Sequence[Pass], of_layers: list[dict[int, int]], *, first: bool
) -> None:
    """B of all layers, the last one first; received and sent gradients stay until the end."""
    last = passes[-1]
    sizes = {step.number: step.size for step in last.backward if step.size > 0}
    arrived = [ledger.begin(sizes[number], MESSAGES) for number in last.returned]
    ledger.hold(arrived)
    gradients: list[int | None] = [*arrived]
    for layer, known in zip(reversed(passes), reversed(of_layers), strict=True):
        gradients = _backward_of_layer(ledger, layer, known, gradients, first=first)
    ledger.release(arrived)
    ledger.release(each for each in gradients if each is not None)


def _backward_of_layer(
    ledger: _Ledger, layer: Pass, known: dict[int, int], gradients: list[int | None], *, first: bool
) -> list[int | None]:
    """B of one layer: from the gradients of its outputs to those of its inputs.

    They are numbers in the ledger, None where there is none: no later layer has used an output, or
    an input needs none. `known` has the layer's other storages.
    """
    incoming = dict(zip(layer.returned, gradients or [None] * len(layer.returned), strict=True))
    known |= {number: entry for number, entry in incoming.items() if entry is not None}
    made = {number for number in layer.made if number is not None}
    absent = {number for number, entry in incoming.items() if entry is None} - made
    for step in layer.first_backward if first else layer.backward:
        if step.number is None:
            ledger.change_inner(step, GRADIENTS)
        elif step.number in absent:
            continue
        elif step.size < 0 and step.number not in made:
            ledger.release([known[step.number]])
        elif step.size > 0 and step.number not in known:
            known[step.number] = ledger.begin(step.size, ACTIVATIONS)
    outgoing = [None if number is None else known[number] for number in layer.made]
    # Kept for W, besides for the layer before.
    ledger.hold(known[n] for product in layer.products for n in product.ended if n in made)
    ledger.hold(n for i, n in enumerate(outgoing) if n is not None and n in outgoing[:i])
    return outgoing


def _weights(
    ledger: _Ledger, passes: Sequence[Pass], of_layers: list[dict[int, int]], *, first: bool
) -> None:
    """W of all layers, the last one first, as in `gpipe.core.split`."""
    made, kept = list[int](), list[int]()
    for layer, known in zip(reversed(passes), reversed(of_layers), strict=True):
        for product in layer.products:
            ledger.release(kept)  # until the next operator's turn
            kept = [known[number] for number in product.ended]
            made.append(product.made)
            ledger.change_inner(Step(None, product.made), GRADIENTS)
            if sum(made) > AT_ONCE:
                _add(ledger, made, first=first)
    _add(ledger, made, first=first)
    ledger.release(kept)


def _add(ledger: _Ledger, made: list[int], *, first: bool) -> None:
    """Add gradients that W has made to those of the parameters, which are copies at first."""
    if first:
        ledger.change_inner(Step(None, 0, sum(made)), GRADIENTS)
    ledger.change_inner(Step(None, -sum(made)), GRADIENTS)
    made.clear()
