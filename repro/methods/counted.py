"""What each process sends in a step, counted by one micro-batch of each on the meta device."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from repro.gpipe.core.layers import Layer, on_meta, parameter_counts
from repro.gpipe.tree import Tree, map_leaves
from repro.methods.convolutions import divide_channels, divide_rows
from repro.methods.divided import Group, divisible
from repro.methods.peers.flat import boundaries
from repro.methods.traffic import SentBytes, ring_share


class Counted(NamedTuple):
    """What a way to use several devices costs, by the shapes of a model alone."""

    sent: list[dict[str, int]]  # of each process: what -> bytes, as `traffic.SentBytes` names it
    undivided: float  # share of the products of all convolutions that every process computes


def count(
    library: str, layers: Sequence[Layer], sample: Tree, P: int, M: int, balance: Sequence[int] = ()
) -> Counted:
    """Of a step on P devices of M micro-batches, each as large as the sample.

    `balance` are the layers of each stage, of a pipeline.
    """
    sample = map_leaves(Tensor, lambda t: t.to("meta"), sample)
    sent: list[dict[str, int]] = [{} for _ in range(P)]
    undivided = 0.0
    if library == "repro":
        for stage, (tensors, _) in enumerate(boundaries(layers, sample, balance)[1:-1]):
            size = sum(tensor.nbytes for tensor in tensors)
            sent[stage]["activations"] = sent[stage + 1]["gradients"] = size
    elif library == "tensor":
        sent = [_of_matrices(layers, sample, P)] * P
    elif library in ("channels", "rows"):
        # All processes are alike, but for those that have different rows.
        numbers = range(P) if library == "rows" else [0] * P
        parts = {t: _of_part(library, layers, sample, Group(t, P)) for t in set(numbers)}
        sent = [parts[t][0] for t in numbers]
        products = sum(parts[t][1] for t in numbers)
        _, whole = _of_part(library, layers, sample, Group(0, 1))
        undivided = (products - whole) / ((P - 1) * whole) if whole else 0.0
    sent = [{what: M * size for what, size in of.items()} for of in sent]
    if library in ("ddp", "rows"):
        # After the last micro-batch; running statistics of batch norm before the first.
        parameters = 4 * sum(parameter_counts(layers))
        buffers = sum(buffer.nbytes for layer in on_meta(layers) for buffer in layer.buffers())
        for of in sent:
            of["all-reduce"] = round(parameters * ring_share("all-reduce", P))
            of["broadcast"] = round(buffers * ring_share("broadcast", P))
    return Counted(sent, undivided)


def _of_matrices(layers: Sequence[Layer], sample: Tree, P: int) -> dict[str, int]:
    """What one process sends for a micro-batch where torch divides the matrices of each plan.

    The outputs of divided rows are summed in the forward, and in the backward the gradients of what
    divided columns read.
    """
    module = nn.Sequential(*on_meta(layers))
    summed: list[int] = []
    for part in divisible(module):
        for name in (*part.tensor_plan.inputs, *part.tensor_plan.rows):
            part.get_submodule(name).register_forward_hook(
                lambda _module, _given, output: summed.append(output.nbytes)
            )
    module(sample)
    return {"all-reduce": round(sum(summed) * ring_share("all-reduce", P))}


def _of_part(
    library: str, layers: Sequence[Layer], sample: Tree, group: Group
) -> tuple[dict[str, int], int]:
    """What one process sends for a micro-batch, and the products in its convolutions' forward."""
    module = nn.Sequential(*on_meta(layers))
    products: list[int] = []

    def met(conv: Any, _given: Tree, output: Tensor) -> None:
        products.append(output.numel() * conv.weight[0].numel())

    for conv in module.modules():
        if isinstance(conv, nn.Conv2d):
            conv.register_forward_hook(met)
    if library == "channels":
        divide_channels(module, group)
    else:
        divide_rows(module, group, layers, sample)
    with SentBytes(group.count) as sent:
        module(sample).sum().backward()
    return sent.counts, sum(products)
