"""Roofline cost model: seconds of every layer on a device, from the layer's counted operators.

An operator takes the larger of FLOPs / rate and bytes / bandwidth, plus a launch. Its rate grows
with its work w as w / (w + half), so it takes half / rate longer. Where the device has a matrix
unit, the FLOPs are those of the matrices padded to its tiles. Where the host launches operators
more slowly than the device does them, the host's time counts.

The model leaves out what a compiler or a cache would save: XLA fuses operators without matrix
products into their neighbours, so a TPU moves fewer bytes than counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.costs import products
from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.trace import Op, gradient_bytes
from repro.gpipe.partition.layer_costs import Profile
from repro.gpipe.tree import Tree

_ELEMENT = 4  # bytes of a float32, which is what our models store


@dataclass(frozen=True)
class LayerTime:
    """Costs of one layer, or of the loss, for one micro-batch."""

    forward: float  # seconds of F, and so of R
    backward: float
    update: float  # seconds of the optimizer's update, once per mini-batch
    activation_bytes: int  # that go forward behind the layer
    gradient_bytes: int  # that come back
    parameters: int  # their number


def operator_seconds(op: Op, device: Device) -> float:
    """Seconds of one operator; one that neither computes nor moves data costs nothing.

    An operator without counted FLOPs takes one operation for each element that it writes.
    """
    # An embedding reads only those table rows that it writes.
    read = op.written if op.name.split(".")[0] == "embedding" else op.read
    stored = device.element_bytes.value / _ELEMENT  # as our models store float32
    moved = stored * (op.written + read) / device.bytes_per_second.value
    if not (op.flops or moved):
        return 0.0
    if op.flops:
        rate = device.matmul_flops.value
        half = device.convolution_half if "convolution" in op.name else device.product_half
        work = op.flops / rate
        if op.product is not None:
            work *= products.padding(op.product, device.tile.value)
    else:
        rate = device.bytes_per_second.value
        half = device.norm_half if "norm" in op.name else device.elementwise_half
        work = op.written / _ELEMENT / device.other_flops.value
    return max(work, moved) + half.value / rate + device.launch_s.value


def layers(counter: Counter, part: Tree, device: Device) -> tuple[LayerTime, ...]:
    """Costs of every layer for one micro-batch."""
    stored = device.element_bytes.value / _ELEMENT
    # Layers of a kind share their trace, so its seconds are summed up once.
    known = dict[int, tuple[float, float]]()
    times = []
    for index, behind in enumerate(counter.boundaries(part)[1:]):
        traced, resident = counter.layer(index, part), counter.resident(index)
        if id(traced) not in known:
            forward, backward = _seconds(traced.ops, device), _seconds(traced.ops_backward, device)
            known[id(traced)] = forward, backward
        times.append(
            LayerTime(
                *known[id(traced)],
                resident.updated / device.bytes_per_second.value,
                round(stored * behind.content),
                round(stored * gradient_bytes(behind)),
                resident.count,
            )
        )
    return tuple(times)


def head(counter: Counter, part: Tree, targets: Tree, device: Device) -> LayerTime:
    """Costs of the loss of one micro-batch, in the form of a layer."""
    loss = counter.head(part, targets, graph=True)
    forward, backward = (_seconds(ops, device) for ops in (loss.ops, loss.ops_backward))
    return LayerTime(forward, backward, 0.0, 0, 0, 0)


def profile(times: Sequence[LayerTime], head: LayerTime) -> Profile:
    """Profile for partitioners and schedules: F, R and B of every layer, the loss in the last."""
    forward = [time.forward for time in times]
    backward = [time.backward for time in times]
    forward[-1] += head.forward
    backward[-1] += head.backward
    between = times[:-1]
    return Profile(
        tuple(forward),
        tuple(forward),
        tuple(backward),
        tuple(time.activation_bytes for time in between),
        tuple(time.gradient_bytes for time in between),
    )


def _seconds(ops: Iterable[Op], device: Device) -> float:
    each = [operator_seconds(op, device) for op in ops]
    # An operator that takes no time on the device is a view, which the host does not launch.
    host = device.host_s.value * sum(seconds > 0 for seconds in each)
    return max(sum(each), host)
