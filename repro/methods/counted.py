"""What each process sends in a step, counted by one micro-batch of each on the meta device.

Two ways to divide convolutions are counted and not run. The paper argues against both (section 6,
on Mesh-TensorFlow): by output channels, and by the rows of their images. In both, every process
runs all layers of an AmoebaNet on the same mini-batch.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from repro.gpipe.core.layers import Layer, on_meta, parameter_counts
from repro.gpipe.tree import Tree, flatten, map_leaves
from repro.methods.divided import divisible
from repro.methods.peers.flat import boundaries
from repro.methods.traffic import ring_share
from repro.models.operations import FactorizedReduction

_ELEMENT = 4  # bytes of a float32
_WINDOWS = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d, FactorizedReduction)


class Counted(NamedTuple):
    """What a way to use several devices costs, by the shapes of a model alone."""

    sent: list[dict[str, int]]  # of each process: what -> bytes, as `traffic.SentBytes` names it
    undivided: float  # share of the products of all convolutions that every process computes


class _Run(NamedTuple):
    """One module in the forward, with what it read and made: [N, C, H, W]."""

    module: Any
    read: Tensor
    made: Tensor
    is_inside: bool  # whether it gets what a reduction around it has read

    @property
    def products(self) -> int:
        is_conv = isinstance(self.module, nn.Conv2d)
        return self.made.numel() * self.module.weight[0].numel() if is_conv else 0


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
    elif library == "channels":
        of_one, undivided = _of_channels(layers, sample, P)
        sent = [of_one] * P
    elif library == "rows":
        sent, undivided = _of_rows(layers, sample, P)
    sent = [{what: M * size for what, size in of.items()} for of in sent]
    if library in ("ddp", "rows"):
        # After the last micro-batch; running statistics of batch norm before the first.
        parameters = _ELEMENT * sum(parameter_counts(layers))
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


def _of_channels(layers: Sequence[Layer], sample: Tree, P: int) -> tuple[dict[str, int], float]:
    """What one process sends for a micro-batch, and the share of products that is not divided.

    Behind a convolution its channels are gathered, since what follows reads all of them. In the
    backward each process has a part of the gradient of its input, and these are summed.
    """
    _, runs = _forward(layers, sample)
    convolutions = [run for of_layer in runs for run in of_layer if run.products]
    parts = [run for run in convolutions if _has_parts(run.module, P)]
    gathered = sum(run.made.nbytes for run in parts)
    summed = sum(run.read.nbytes for run in parts if run.read.requires_grad)
    sizes = {"all-gather": gathered, "all-reduce": summed}
    whole, divided = (sum(run.products for run in of) for of in (convolutions, parts))
    sent = {what: round(size * ring_share(what, P)) for what, size in sizes.items()}
    return sent, (whole - divided) / whole


def _has_parts(conv: nn.Conv2d, T: int) -> bool:
    """Whether the channels of a convolution can be divided over T processes."""
    return conv.groups == 1 and conv.bias is None and conv.out_channels % T == 0


def _of_rows(layers: Sequence[Layer], sample: Tree, P: int) -> tuple[list[dict[str, int]], float]:
    """What each process sends for a micro-batch, and the share of products that is not divided.

    What reads neighbouring rows gets those of other processes first (a halo), and batch norm the
    mean and variance of all rows. From the first layer on that makes fewer rows than there are
    processes, and in the last layer, all processes have whole images and do the same work. The
    backward returns the gradients of all that came.
    """
    values, runs = _forward(layers, sample)
    fewest = [min((run.made.shape[2] for run in of), default=0) for of in runs]
    end = next(n for n, made in enumerate(fewest) if made < P)
    numbers = [0] * P  # that each process sends

    def exchange(size: int, H: int, wanted: Sequence[range], *, returns: bool) -> None:
        """Process t has its rows of H, each of `size` numbers, and gets those that it wants."""
        have = _divided(H, P)
        for t, u in ((t, u) for t in range(P) for u in range(P) if t != u):
            rows = len(range(*_common(have[t], wanted[u])))
            numbers[t] += size * rows
            numbers[u] += size * rows * returns

    for run in (run for of_layer in runs[:end] for run in of_layer):
        N, C, H, W = run.read.shape
        if isinstance(run.module, nn.BatchNorm2d):
            exchange(2 * C, P, [range(P)] * P, returns=True)
        elif not run.is_inside:
            of_each = _divided(run.made.shape[2], P)
            wanted = [_reads(run.module, H, run.made.shape[2], outputs) for outputs in of_each]
            exchange(N * C * W, H, wanted, returns=run.read.requires_grad)
    gathered = values[end] if fewest[end] else values[end][:1]  # the last layer reads no skip
    for N, C, H, W in (value.shape for value in gathered):
        exchange(N * C * W, H, [range(H)] * P, returns=True)
    products = [sum(run.products for run in of_layer) for of_layer in runs]
    return [{"messages": _ELEMENT * n} for n in numbers], sum(products[end:]) / sum(products)


def _divided(H: int, P: int) -> list[range]:
    """The rows of each process."""
    return [range(H * t // P, H * (t + 1) // P) for t in range(P)]


def _common(one: range, other: range) -> tuple[int, int]:
    return max(one.start, other.start), min(one.stop, other.stop)


def _reads(module: Any, H: int, made: int, outputs: range) -> range:
    """The rows, of H, that a module reads for some of the rows that it makes."""
    kernel, stride = _pair(module.kernel_size)[0], _pair(module.stride)[0]
    padding = max(0, (made - 1) * stride + kernel - H)
    first = outputs.start * stride - padding // 2
    return range(*_common(range(first, first + (len(outputs) - 1) * stride + kernel), range(H)))


def _forward(layers: Sequence[Layer], sample: Tree) -> tuple[list[list[Tensor]], list[list[_Run]]]:
    """Of each layer: the tensors that it reads, and what runs in it on images."""
    values: list[list[Tensor]] = []
    runs: list[list[_Run]] = []
    module = nn.Sequential(*on_meta(layers))
    reductions = [part for part in module.modules() if isinstance(part, FactorizedReduction)]
    inside = {conv for part in reductions for conv in (part.even, part.odd)}

    def ran(part: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        runs[-1].append(_Run(part, *given, output, part in inside))

    for part in module.modules():
        if isinstance(part, (*_WINDOWS, nn.BatchNorm2d)):
            part.register_forward_hook(ran)
    value = sample
    for layer in module:
        values.append(flatten(value)[0])
        runs.append([])
        value = layer(value)
    return values, runs
