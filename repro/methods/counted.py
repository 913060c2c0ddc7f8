"""What each process sends in a step, by the shapes of a model alone."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

from repro.gpipe.core.layers import Layer, on_meta, parameter_counts
from repro.gpipe.core.microbatch import Tree
from repro.methods.convolutions import Counted, byte_size, count_channels, count_rows, meet
from repro.methods.divided import sums
from repro.methods.traffic import ring_share


def count(
    library: str, layers: Sequence[Layer], sample: Tree, P: int, M: int, balance: Sequence[int] = ()
) -> Counted:
    """Of a step on P devices of M micro-batches, each as large as the sample.

    `balance` are the layers of each stage, of a pipeline.
    """
    ways = {
        "repro": partial(_stages, balance),
        "ddp": _replicas,
        "tensor": _matrices,
        "channels": count_channels,
        "rows": count_rows,
    }
    each = ways[library](layers, sample, P)
    sent = [{what: M * size for what, size in of.items()} for of in each.sent]
    if library in ("ddp", "rows"):
        # After the last micro-batch; running statistics of batch norm before the first.
        parameters = 4 * sum(parameter_counts(layers))
        buffers = sum(buffer.nbytes for layer in on_meta(layers) for buffer in layer.buffers())
        for of in sent:
            of["all-reduce"] = round(parameters * ring_share("all-reduce", P))
            of["broadcast"] = round(buffers * ring_share("broadcast", P))
    return each._replace(sent=sent)


def _stages(balance: Sequence[int], layers: Sequence[Layer], sample: Tree, K: int) -> Counted:
    _, inputs = meet(layers, sample)
    sent: list[dict[str, int]] = [{} for _ in range(K)]
    for stage, first in enumerate([*accumulate(balance)][:-1]):
        size = sum(map(byte_size, inputs[first]))
        sent[stage]["activations"] = size
        sent[stage + 1]["gradients"] = size
    return Counted(sent, 0.0)


def _replicas(_layers: Sequence[Layer], _sample: Tree, D: int) -> Counted:
    return Counted([{}] * D, 0.0)


def _matrices(layers: Sequence[Layer], sample: Tree, T: int) -> Counted:
    """What the layers between the first and the last sum over their parts."""
    _, inputs = meet(layers, sample)
    summed = 0
    for index, layer in enumerate(on_meta(layers)):
        forward, backward = sums(layer)
        if forward or backward:
            given, made = (sum(map(byte_size, inputs[at])) for at in (index, index + 1))
            summed += forward * made + backward * given
    return Counted([{"all-reduce": round(summed * ring_share("all-reduce", T))}] * T, 0.0)
