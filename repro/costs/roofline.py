"""Seconds of every layer on a device, from its counted operators: each takes what its work or its bytes take.

An operator alone is charged max(operations / rate, bytes / bandwidth), and a launch. Left out is
what a compiler or a cache would save: XLA fuses operators without matrices into their neighbours,
so a TPU moves fewer bytes than this.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.trace import Op
from repro.gpipe.core.microbatch import Tree
from repro.gpipe.partition.layer_profile import Profile

TERMS = ("matmul", "memory", "launch")
_ELEMENT = 4  # bytes of a float32, which is what our models store


@dataclass(frozen=True)
class Terms:
    """Seconds by cause; they add up.

    Attributes:
        matmul: operations of matrix multiplication, convolution and fused attention at the device's
            rate.
        memory: what those take beyond that because of their bytes, and all that other operators
            take.
        launch: what the device takes for every operator besides.
    """

    matmul: float = 0.0
    memory: float = 0.0
    launch: float = 0.0

    @property
    def total(self) -> float:
        """All together."""
        return self.matmul + self.memory + self.launch


@dataclass(frozen=True)
class LayerTime:
    """What one layer, or the loss, costs for one micro-batch.

    Attributes:
        forward: of F, and so of R.
        backward: of B.
        update: seconds of the optimizer's update, once for each mini-batch; 0 without an optimizer.
        activation_bytes: what goes forward behind the layer: all tensors.
        gradient_bytes: what comes back there: gradients of those tensors that require one.
        parameters: how many.
        end: whether it belongs to the model's ends, which have no like among the layers between: an
            embedding, the last layer, the loss.
    """

    forward: Terms
    backward: Terms
    update: float
    activation_bytes: int
    gradient_bytes: int
    parameters: int
    end: bool


def operator_seconds(op: Op, device: Device) -> Terms:
    """One operator; one that neither computes nor moves anything, such as `empty`, costs nothing.

    Operators without counted operations are charged one for each element that they write.
    """
    moved = _moved(op) / device.bytes_per_second.value
    if not (op.flops or moved):
        return Terms()
    if op.flops:
        work = op.flops / device.matmul_flops.value
        return Terms(work, max(0.0, moved - work), device.launch_s.value)
    return Terms(
        0.0, max(op.written / _ELEMENT / device.other_flops.value, moved), device.launch_s.value
    )


def layers(counter: Counter, part: Tree, device: Device) -> tuple[LayerTime, ...]:
    """Every layer of a counted model.

    Args:
        counter: of the model; its optimizer is whose update is charged.
        part: one micro-batch of inputs, as `Counter.layer` takes it.
        device: on which.

    Raises:
        ValueError: one line, naming a layer that does not work on fake tensors.
    """
    last = len(counter) - 1
    # of layers alike, which share the very operators
    known = dict[tuple[int, int], tuple[Terms, Terms]]()
    found = []
    for index, (_, behind) in enumerate(pairwise(counter.boundaries(part))):
        cost = counter.cost(index, part)
        end = index == last or any(op.name.startswith("embedding") for op in cost.forward)
        key = id(cost.forward), id(cost.backward)
        if key not in known:
            known[key] = _seconds(cost.forward, device), _seconds(cost.backward, device)
        forward, backward = known[key]
        update = counter.resident(index).updated / device.bytes_per_second.value
        found.append(
            LayerTime(
                forward, backward, update, behind.nbytes, behind.gradients, cost.parameters, end
            )
        )
    return tuple(found)


def head(counter: Counter, part: Tree, targets: Tree, device: Device) -> LayerTime:
    """The loss of one micro-batch, as `layers` tells of a layer; behind it nothing is sent."""
    found = counter.head(part, targets, graph=True)
    return LayerTime(
        _seconds(found.ops, device), _seconds(found.ops_backward, device), 0.0, 0, 0, 0, end=True
    )


def profile(
    times: Sequence[LayerTime],
    head: LayerTime,
    *,
    terms: Collection[str] = TERMS,
    ends: bool = True,
    recompute: bool = True,
) -> Profile:
    """What partitioners and schedules take: seconds of F, R and B of every layer, the loss in the last one's.

    Args:
        times: of `layers`.
        head: the loss, of `head`.
        terms: which causes count, of `TERMS`.
        ends: whether the model's ends, the loss among them, cost anything; if not, they stay as
            layers of cost 0.
        recompute: whether R costs what F does, or nothing.

    Raises:
        ValueError: an unknown term.
    """
    if unknown := sorted(set(terms) - set(TERMS)):
        raise ValueError(
            f"terms: no term {unknown[0]!r}: allowed are {', '.join(TERMS)}; try terms={TERMS!r}"
        )

    def chosen(time: LayerTime, what: Terms) -> float:
        return (
            sum(getattr(what, term) for term in TERMS if term in terms)
            if ends or not time.end
            else 0.0
        )

    forward = [chosen(time, time.forward) for time in times]
    backward = [chosen(time, time.backward) for time in times]
    forward[-1] += chosen(head, head.forward)
    backward[-1] += chosen(head, head.backward)
    between = times[:-1]
    return Profile(
        tuple(forward),
        tuple(forward) if recompute else (0.0,) * len(times),
        tuple(backward),
        tuple(time.activation_bytes for time in between),
        tuple(time.gradient_bytes for time in between),
    )


def _seconds(ops: Iterable[Op], device: Device) -> Terms:
    parts = [operator_seconds(op, device) for op in ops]
    return Terms(
        sum(p.matmul for p in parts), sum(p.memory for p in parts), sum(p.launch for p in parts)
    )


def _moved(op: Op) -> int:
    """Bytes; of its table an embedding reads the rows that it writes."""
    return 2 * op.written if op.name.split(".")[0] == "embedding" else op.nbytes
