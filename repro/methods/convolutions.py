"""Convolutions divided over T processes: by output channels, or by the rows of their images.

The paper argues against both (section 6, on Mesh-TensorFlow). In both, every process runs all
layers of an image model on the same mini-batch. Collectives are torch's own; its
torch.distributed.tensor divides neither a convolution with a stride by rows, nor a pool.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

from repro.gpipe.core.layers import Layer, on_meta
from repro.gpipe.tree import Tree, flatten, map_leaves
from repro.methods.divided import Group, with_summed_gradients
from repro.methods.unpipelined import DataParallel, Unpipelined
from repro.models.amoebanet import Cell, Head, Stem
from repro.models.operations import FactorizedReduction, SameConv, SameMaxPool


class ChannelParallel(Unpipelined):
    """Each process computes 1 / T of the output channels of every convolution."""

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        divide_channels(module, Group(self._rank, self._processes, self._group.group_name))
        return module


class RowParallel(DataParallel):
    """Each process has 1 / T of the rows of every image, and all weights.

    The backward of the gather in front of whole images adds up T equal gradients, and
    DistributedDataParallel divides sums over the processes by T: so the gradients of all weights
    are those of one device.
    """

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        divide_rows(
            module,
            Group(self._rank, self._processes, self._group.group_name),
            self._setup.layers,
            self._setup.sample,
        )
        return super()._wrapped(module)


def divide_channels(module: nn.Module, group: Group) -> None:
    """Behind a convolution its channels are gathered, since what follows reads all of them.

    In the backward each process has a part of the gradient of the convolution's input, and these
    are summed.
    """
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d) and has_parts(conv, group.count):
            conv.weight = group.of(conv.weight, 0)
            conv.register_forward_pre_hook(
                lambda _conv, given: with_summed_gradients(given[0], group)
            )
            conv.register_forward_hook(lambda _conv, _given, output: _Gathered.apply(output, group))


def has_parts(conv: nn.Conv2d, T: int) -> bool:
    """Whether the channels of a convolution can be divided over T processes."""
    return conv.groups == 1 and conv.bias is None and conv.out_channels % T == 0


class _Gathered(torch.autograd.Function):
    """The channels of all parts; in the backward the gradient of this part's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return torch.cat(group.gather(value).chunk(group.count), 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].chunk(ctx.group.count, 1)[ctx.group.number], None


def divide_rows(
    module: nn.Sequential, group: Group, layers: Sequence[Layer], sample: Tree
) -> list[torch.Size]:
    """Let the layers of a model run on 1 / T of the rows of images.

    What reads neighbouring rows gets those of other processes first (a halo), and batch norm the
    statistics of all rows. From the first layer on that makes fewer rows than there are processes,
    and in the last layer, all processes have whole images and do the same work. Returns the shapes
    that the first of these layers reads.
    """
    shapes: dict[nn.Module, tuple[torch.Size, torch.Size]] = {}  # of what a module reads and makes
    read: list[list[torch.Size]] = []  # shapes, by layer
    rows, whole = Rows(group), nn.Sequential(*on_meta(layers))

    def met(part: nn.Module, given: tuple[Tensor], output: Tensor) -> None:
        shapes[part] = given[0].shape, output.shape

    for part in whole.modules():
        if type(part) in _RUN:
            part.register_forward_hook(met)
    value = map_leaves(Tensor, lambda t: t.to("meta"), sample)
    for layer in whole:
        read.append([tensor.shape for tensor in flatten(value)[0]])
        value = layer(value)
    # The fewest rows that are made in each layer; the last layer has no such module.
    fewest = [
        min((shapes[part][1][2] for part in layer.modules() if part in shapes), default=0)
        for layer in whole
    ]
    end = next(n for n, made in enumerate(fewest) if made < rows.count)
    for n in range(end):
        for part, own in zip(whole[n].modules(), module[n].modules(), strict=True):
            if isinstance(part, FactorizedReduction):  # its convolutions get what it has read
                del shapes[part.even], shapes[part.odd]
            if part in shapes:
                # In place of the module, so that names of weights stay.
                vars(own)["forward"] = partial(_RUN[type(own)], own, rows, *shapes[part])
    gathered = read[end] if fewest[end] else read[end][:1]  # the last layer reads no skip
    module[0].register_forward_pre_hook(lambda _layer, given: rows.own(*given))
    module[end].register_forward_pre_hook(lambda _layer, given: rows.gathered(given, gathered))
    return gathered


def refuse_undivided(library: str, layers: Sequence[Layer], T: int) -> None:
    """Raise a one-line ValueError if it is not known how to divide a model, or nothing would be."""
    divides = library == "rows"
    for layer in on_meta(layers):
        if type(layer) not in (Stem, Cell, Head):
            raise ValueError(
                f"tensor_parallel = {T}: has a {type(layer).__name__}; by channels or rows only "
                "the layers of AmoebaNet are divided; use the model 'amoebanet-d', or another "
                "method, such as 'data'"
            )
        convs = (module for module in layer.modules() if isinstance(module, nn.Conv2d))
        divides = divides or any(has_parts(conv, T) for conv in convs)
    if not divides:
        raise ValueError(
            f"tensor_parallel = {T}: divides the output channels of no convolution; choose a "
            "divisor of the filters D, such as 2"
        )


class Rows:
    """The rows of images [N, C, H, W]: process t has those from H t // T to H (t + 1) // T."""

    def __init__(self, group: Group) -> None:
        self._group, self.number, self.count = group, group.number, group.count

    def of(self, H: int) -> list[range]:
        """Of each process."""
        T = self.count
        return [range(H * t // T, H * (t + 1) // T) for t in range(T)]

    def own(self, images: Tensor) -> Tensor:
        """The rows of this process, of whole images."""
        have = self.of(images.shape[2])[self.number]
        return images[:, :, have.start : have.stop]

    def gathered(self, given: Tree, shapes: Sequence[torch.Size]) -> Tree:
        """The first tensors with all rows, of which this process has its own."""
        left = iter(shapes)

        def gather(x: Tensor) -> Tensor:
            whole = next(left, None)
            return x if whole is None else self.take(x, whole[2], [range(whole[2])] * self.count)

        return map_leaves(Tensor, gather, given)

    def take(self, x: Tensor, H: int, wanted: Sequence[range]) -> Tensor:
        """The rows that this process wants, of H; x [N, C, h, W] are those that it has.

        Process t wants `wanted[t]`.
        """
        t, have, (N, C, _, W) = self.number, self.of(H), x.shape
        offered = [_common(have[t], want) for want in wanted]
        given = [x[:, :, r.start - have[t].start : r.stop - have[t].start] for r in offered]
        if all(_common(*pair) == pair[1] for pair in zip(have, wanted, strict=True)):
            return given[t]
        come = [(N, C, len(_common(rows, wanted[t])), W) for rows in have]
        return torch.cat(self._exchange(given, come), 2)

    def gather(self, values: Tensor) -> Tensor:
        """[n] -> [T, n]: the numbers of every process."""
        return torch.stack(self._exchange([values] * self.count, [values.shape] * self.count))

    def _exchange(self, given: list[Tensor], come: Sequence[Sequence[int]]) -> list[Tensor]:
        """Give `given[u]` to process u; what comes from each has these shapes."""
        t = self.number
        sizes = [0 if u == t else math.prod(shape) for u, shape in enumerate(come)]
        sends = [0 if u == t else tensor.numel() for u, tensor in enumerate(given)]
        # Also where this process sends nothing: in the backward it may have to.
        flat = torch.cat([x.flatten()[:size] for x, size in zip(given, sends, strict=True)])
        got = self._group.exchange(flat, sizes, sends).split(sizes)
        pairs = zip(got, come, strict=True)
        return [given[t] if u == t else x.view(shape) for u, (x, shape) in enumerate(pairs)]


def _common(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


def _reads(
    module: Any, shapes: Sequence[torch.Size], dimension: int, outputs: range
) -> tuple[range, tuple[int, int]]:
    """The pixels for some outputs along a dimension, and how many of padding are before and after.

    `shapes` are those of what the whole module reads and makes.
    """
    kernel, stride = (_pair(each)[dimension - 2] for each in (module.kernel_size, module.stride))
    size, made = (shape[dimension] for shape in shapes)
    padding = max(0, (made - 1) * stride + kernel - size)
    first = outputs.start * stride - padding // 2
    end = first + (len(outputs) - 1) * stride + kernel
    return _common(range(first, end), range(size)), (max(0, -first), max(0, end - size))


def _on_what_it_reads(
    run: Callable[..., Tensor],
    module: nn.Module,
    rows: Rows,
    given: torch.Size,
    made: torch.Size,
    x: Tensor,
) -> Tensor:
    """What an operator makes of the pixels that this process's outputs depend on.

    `run` gets the module, what pads the pixels, and these.
    """
    along = partial(_reads, module, (given, made))
    read = [along(2, outputs) for outputs in rows.of(made[2])]
    _, above_and_below = read[rows.number]
    _, beside = along(3, range(made[3]))
    taken = rows.take(x, given[2], [some for some, _ in read])
    return run(module, partial(functional.pad, pad=(*beside, *above_and_below)), taken)


def _convolve(conv: nn.Conv2d, pad: Callable[..., Tensor], x: Tensor) -> Tensor:
    return nn.Conv2d.forward(conv, pad(x))


def _maximum(pool: nn.MaxPool2d, pad: Callable[..., Tensor], x: Tensor) -> Tensor:
    return functional.max_pool2d(pad(x, value=-math.inf), pool.kernel_size, pool.stride)


def _average(pool: nn.AvgPool2d, pad: Callable[..., Tensor], x: Tensor) -> Tensor:
    """The mean over the pixels of the image, without its padding."""
    assert not pool.count_include_pad
    mean = partial(functional.avg_pool2d, kernel_size=pool.kernel_size, stride=pool.stride)
    # The share of pixels in a window is the same for all images and channels.
    return mean(pad(x)) / mean(pad(torch.ones_like(x[:1, :1])))


def _reduce(reduction: FactorizedReduction, pad: Callable[..., Tensor], x: Tensor) -> Tensor:
    return FactorizedReduction.forward(reduction, pad(x))


def _normalise(norm: Any, rows: Rows, given: torch.Size, _made: torch.Size, x: Tensor) -> Tensor:
    """By the mean and variance of all rows, which move the running statistics."""
    assert norm.training
    _, C, H, W = given
    own = torch.var_mean(x, (0, 2, 3), correction=0)
    variances, means = rows.gather(torch.cat(own)).view(-1, 2, C).unbind(1)
    shares = x.new_tensor([len(each) / H for each in rows.of(H)])
    mean = shares @ means
    variance = shares @ (variances + (means - mean).square())
    with torch.no_grad():
        pixels = len(x) * H * W
        unbiased = variance * (pixels / (pixels - 1))
        norm.running_mean.lerp_(mean, norm.momentum)
        norm.running_var.lerp_(unbiased, norm.momentum)
        norm.num_batches_tracked += 1
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return (x - mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]


# What a module runs in place of its forward.
_RUN: dict[type, Any] = {
    nn.BatchNorm2d: _normalise,
    nn.Conv2d: partial(_on_what_it_reads, _convolve),
    SameConv: partial(_on_what_it_reads, _convolve),
    SameMaxPool: partial(_on_what_it_reads, _maximum),
    nn.AvgPool2d: partial(_on_what_it_reads, _average),
    FactorizedReduction: partial(_on_what_it_reads, _reduce),
}
