"""Convolutions divided over T processes: by output channels, or by the rows of their images.

The paper argues against both (section 6, on Mesh-TensorFlow). In both, every process runs all
layers of an image model on the same mini-batch. Collectives are torch's own; its
torch.distributed.tensor divides neither a convolution with a stride by rows, nor a pool.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

from repro.gpipe.core.layers import Layer, on_meta
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves
from repro.methods.divided import Parts, with_summed_gradients
from repro.methods.traffic import ring_share
from repro.methods.unpipelined import DataParallel, SeededLayers, Unpipelined
from repro.models.amoebanet import Cell, Head, Stem
from repro.models.operations import FactorizedReduction, SameConv, SameMaxPool


class ChannelParallel(Unpipelined):
    """Each process computes 1 / T of the output channels of every convolution.

    Behind a convolution its channels are gathered, since what follows reads all of them. In the
    backward each process has a part of the gradient of the convolution's input, and these are
    summed.
    """

    def _wrapped(self, module: SeededLayers) -> nn.Module:
        parts = Parts(self._group)
        for conv in module.modules():
            if isinstance(conv, nn.Conv2d) and has_parts(conv, parts.count):
                conv.weight = parts.of(conv.weight, 0)
                conv.register_forward_pre_hook(
                    lambda _conv, given: with_summed_gradients(given[0], parts)
                )
                conv.register_forward_hook(
                    lambda _conv, _given, output: _Gathered.apply(output, parts)
                )
        return module


def has_parts(conv: nn.Conv2d, T: int) -> bool:
    """Whether the channels of a convolution can be divided over T processes."""
    return conv.groups == 1 and conv.bias is None and conv.out_channels % T == 0


class _Gathered(torch.autograd.Function):
    """The channels of all parts; in the backward the gradient of this part's."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, parts: Parts) -> Tensor:
        ctx.parts = parts
        gathered = value.new_empty(parts.count * len(value), *value.shape[1:])
        dist.all_gather_into_tensor(gathered, value.contiguous(), group=parts.group)
        return torch.cat(gathered.chunk(parts.count), 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].chunk(ctx.parts.count, 1)[ctx.parts.number], None


class RowParallel(DataParallel):
    """Each process has 1 / T of the rows of every image, and all weights.

    What reads neighbouring rows gets those of other processes first (a halo), and batch norm the
    statistics of all rows. From the first layer on that makes fewer rows than there are processes,
    and in the last layer, all processes have whole images and do the same work. The backward of
    that gather adds up T equal gradients, and DistributedDataParallel divides sums over the
    processes by T: so the gradients of all weights are those of one device.
    """

    def _wrapped(self, module: SeededLayers) -> nn.Module:
        rows = Rows(dist.get_world_size(self._group), dist.get_rank(self._group), self._group)
        sites, inputs = meet(self._setup.layers, self._setup.sample)
        whole = first_whole(sites, len(inputs), rows.count)
        for site in on_rows(sites, whole):
            own: Any = module[site.layer].get_submodule(site.name)
            # In place of the module, so that names of weights stay.
            vars(own)["forward"] = partial(_RUN[type(own)], own, rows, site)
        module[0].register_forward_pre_hook(lambda _layer, given: rows.own(*given))
        read = read_whole(inputs, whole)
        module[whole].register_forward_pre_hook(lambda _layer, given: rows.gathered(given, read))
        return super()._wrapped(module)


def refuse_undivided(library: str, layers: Sequence[Layer], T: int) -> None:
    """Raise a one-line ValueError if it is not known how to divide a model, or nothing would be."""
    divides = library == "rows"
    for layer in on_meta(layers):
        if type(layer) not in (Stem, Cell, Head):
            raise ValueError(
                f"tensor_parallel = {T}: has a {type(layer).__name__}; by channels or rows only "
                "the layers of AmoebaNet without an auxiliary head are divided; use the model "
                "'amoebanet-d', or another method, such as 'data'"
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

    def __init__(self, count: int, number: int = 0, group: dist.ProcessGroup | None = None) -> None:
        self.count, self.number, self._group = count, number, group  # T, t

    def of(self, H: int) -> list[range]:
        """Of each process."""
        T = self.count
        return [range(H * t // T, H * (t + 1) // T) for t in range(T)]

    def sent(self, H: int, wanted: Sequence[range]) -> list[list[range]]:
        """Sender -> receiver -> rows, where process t wants `wanted[t]` of the H rows."""
        return [
            [_common(have, want) if t != u else range(0) for u, want in enumerate(wanted)]
            for t, have in enumerate(self.of(H))
        ]

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
        """The rows that this process wants; x [N, C, h, W] are those of H that it has."""
        t, sent = self.number, self.sent(H, wanted)
        have, (N, C, _, W) = self.of(H)[t], x.shape

        def local(rows: range) -> Tensor:
            return x[:, :, rows.start - have.start : rows.stop - have.start]

        if not any(len(some) for to in sent for some in to):
            return local(have)
        sent[t][t] = _common(have, wanted[t])
        come = [(N, C, len(to[t]), W) for to in sent]
        return torch.cat(self._exchange([local(some) for some in sent[t]], come), 2)

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
        assert self._group is not None  # only counting needs none
        got = collectives.all_to_all_single_autograd(flat, sizes, sends, self._group).split(sizes)
        pairs = zip(got, come, strict=True)
        return [given[t] if u == t else x.view(shape) for u, (x, shape) in enumerate(pairs)]


def _common(one: range, other: range) -> range:
    start = max(one.start, other.start)
    return range(start, max(start, min(one.stop, other.stop)))


class Site(NamedTuple):
    """A module whose output depends on several rows, and its shapes in the whole model."""

    layer: int
    name: str  # in its layer
    module: Any  # on the meta device
    input: torch.Size  # [N, C, H, W]
    output: torch.Size


class Window(NamedTuple):
    """What an operator reads along the rows, or along the columns."""

    kernel: int
    stride: int
    size: int  # of the image
    outputs: int

    def reads(self, outputs: range) -> range:
        """The pixels for some of the outputs; those outside of the image are padding."""
        padding = max(0, (self.outputs - 1) * self.stride + self.kernel - self.size)
        first = outputs.start * self.stride - padding // 2
        return range(first, first + (len(outputs) - 1) * self.stride + self.kernel)

    def padded(self, outputs: range) -> tuple[int, int]:
        """How many of them are padding, before and after the image."""
        reads = self.reads(outputs)
        return max(0, -reads.start), max(0, reads.stop - self.size)

    def wanted(self, outputs: range) -> range:
        """Those of the image."""
        return _common(self.reads(outputs), range(self.size))


def meet(layers: Sequence[Layer], sample: Tree) -> tuple[list[Site], list[list[torch.Size]]]:
    """The modules that read several rows, in order, and the shapes that each layer gets."""
    sites: list[Site] = []
    inputs: list[list[torch.Size]] = []
    value = map_leaves(Tensor, lambda t: t.to("meta"), sample)
    for index, layer in enumerate(on_meta(layers)):
        inputs.append([tensor.shape for tensor in flatten(value)[0]])
        for name, module in layer.named_modules():
            if type(module) in _RUN:
                module.register_forward_hook(partial(_met, sites, index, name))
        value = layer(value)
    return sites, inputs


def _met(
    sites: list[Site], layer: int, name: str, module: nn.Module, given: Any, output: Tensor
) -> None:
    sites.append(Site(layer, name, module, given[0].shape, output.shape))


def on_rows(sites: Sequence[Site], whole: int) -> list[Site]:
    """The modules of the layers before `whole` that run on rows.

    The two convolutions of a factorized reduction get what it has read.
    """
    reductions = [site.module for site in sites if isinstance(site.module, FactorizedReduction)]
    inside = {conv for module in reductions for conv in (module.even, module.odd)}
    return [site for site in sites if site.layer < whole and site.module not in inside]


def first_whole(sites: Sequence[Site], layers: int, T: int) -> int:
    """The first layer that all processes run on whole images."""
    return min([layers - 1, *(site.layer for site in sites if site.output[2] < T)])


def read_whole(inputs: Sequence[Sequence[torch.Size]], whole: int) -> Sequence[torch.Size]:
    """The shapes that this layer reads; the last one reads no skip."""
    return inputs[whole][:1] if whole == len(inputs) - 1 else inputs[whole]


def _windows(site: Site) -> list[Window]:
    """Of its rows and of its columns."""
    kernels, strides = _pair(site.module.kernel_size), _pair(site.module.stride)
    sizes = site.input[2:], site.output[2:]
    return [Window(*each) for each in zip(kernels, strides, *sizes, strict=True)]


def _taken(rows: Rows, site: Site, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """The pixels that an operator reads for the outputs of this process, and their padding."""
    vertical, horizontal = _windows(site)
    outputs = rows.of(vertical.outputs)
    taken = rows.take(x, vertical.size, [vertical.wanted(each) for each in outputs])
    columns = horizontal.padded(range(horizontal.outputs))
    return taken, (*columns, *vertical.padded(outputs[rows.number]))


def _read(rows: Rows, site: Site, x: Tensor, fill: float) -> Tensor:
    taken, padding = _taken(rows, site, x)
    return functional.pad(taken, padding, value=fill)


def _convolve(conv: nn.Conv2d, rows: Rows, site: Site, x: Tensor) -> Tensor:
    read = _read(rows, site, x, 0.0)
    return functional.conv2d(read, conv.weight, conv.bias, conv.stride, groups=conv.groups)


def _maximum(pool: SameMaxPool, rows: Rows, site: Site, x: Tensor) -> Tensor:
    return functional.max_pool2d(_read(rows, site, x, -math.inf), pool.kernel_size, pool.stride)


def _average(pool: nn.AvgPool2d, rows: Rows, site: Site, x: Tensor) -> Tensor:
    """The mean over the pixels of the image, without its padding."""
    assert not pool.count_include_pad
    mean = partial(functional.avg_pool2d, kernel_size=pool.kernel_size, stride=pool.stride)
    taken, padding = _taken(rows, site, x)
    # The share of pixels in a window is the same for all images and channels.
    pixels = functional.pad(torch.ones_like(taken[:1, :1]), padding)
    return mean(functional.pad(taken, padding)) / mean(pixels)


def _reduce(reduction: FactorizedReduction, rows: Rows, site: Site, x: Tensor) -> Tensor:
    return FactorizedReduction.forward(reduction, _read(rows, site, x, 0.0))


def _normalise(norm: Any, rows: Rows, site: Site, x: Tensor) -> Tensor:
    """By the mean and variance of all rows, which move the running statistics."""
    mean, variance = norm.running_mean, norm.running_var
    assert norm.momentum is not None
    if norm.training:
        _, C, H, W = site.input
        own = torch.var_mean(x, (0, 2, 3), correction=0)
        variances, means = rows.gather(torch.cat(own)).view(rows.count, 2, C).unbind(1)
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


_RUN: dict[type, Any] = {
    nn.Conv2d: _convolve,
    SameConv: _convolve,
    SameMaxPool: _maximum,
    nn.AvgPool2d: _average,
    FactorizedReduction: _reduce,
    nn.BatchNorm2d: _normalise,
}


class Counted(NamedTuple):
    """What a way to divide a model costs in one micro-batch, by its shapes alone."""

    sent: list[dict[str, int]]  # of each process: what -> bytes, as `traffic.SentBytes` names it
    undivided: float  # share of the products of all convolutions that every process computes


def count_channels(layers: Sequence[Layer], sample: Tree, T: int) -> Counted:
    """Of `ChannelParallel`."""
    sites = [site for site in meet(layers, sample)[0] if isinstance(site.module, nn.Conv2d)]
    divided = [site for site in sites if has_parts(site.module, T)]
    gathered = sum(byte_size(site.output) for site in divided)
    # The images have no gradient.
    summed = sum(byte_size(site.input) for site in divided if site.layer > 0)
    sent = {"all-gather": gathered, "all-reduce": summed}
    sent = {what: round(size * ring_share(what, T)) for what, size in sent.items()}
    return Counted([sent] * T, 1 - _products(divided) / _products(sites))


def count_rows(layers: Sequence[Layer], sample: Tree, T: int) -> Counted:
    """Of `RowParallel`, without the sum of the gradients that follows the last micro-batch."""
    rows = Rows(T)
    sites, inputs = meet(layers, sample)
    whole = first_whole(sites, len(inputs), T)
    sent = [0] * T

    def add(shape: torch.Size, wanted: Sequence[range], *, backward: bool) -> None:
        N, C, H, W = shape
        for t, to in enumerate(rows.sent(H, wanted)):
            for u, some in enumerate(to):
                sent[t] += len(some) * byte_size((N, C, W))
                sent[u] += len(some) * byte_size((N, C, W)) * backward

    for site in on_rows(sites, whole):
        if isinstance(site.module, nn.BatchNorm2d):
            statistics = 2 * (T - 1) * byte_size((2, site.input[1]))
            sent = [size + statistics for size in sent]
        else:
            window = _windows(site)[0]
            wanted = [window.wanted(outputs) for outputs in rows.of(window.outputs)]
            add(site.input, wanted, backward=site.layer > 0)
    for shape in read_whole(inputs, whole):
        add(shape, [range(shape[2])] * T, backward=whole > 0)
    convolutions = [site for site in sites if isinstance(site.module, nn.Conv2d)]
    after = [site for site in convolutions if site.layer >= whole]
    return Counted(
        [{"messages": size} for size in sent], _products(after) / _products(convolutions)
    )


def byte_size(shape: Sequence[int]) -> int:
    """Of float32 numbers."""
    return 4 * math.prod(shape)


def _products(sites: Sequence[Site]) -> int:
    """Multiplications in the forward of convolutions."""
    return sum(math.prod(site.output) * site.module.weight[0].numel() for site in sites)
