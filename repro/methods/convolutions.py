"""Convolutions divided over T processes: by output channels, or by the rows of their images.

The paper argues against both (section 6, on Mesh-TensorFlow). In both, every process runs all
layers of an image model on the same mini-batch. Collectives are torch's own; its
torch.distributed.tensor divides neither a convolution with a stride by rows, nor a pool.
"""

import math
from collections.abc import Callable, Sequence
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
        division = divide_rows(self._setup.layers, self._setup.sample, rows.count)
        for site in division.sites:
            own: Any = module[site.layer].get_submodule(site.name)
            # In place of the module, so that names of weights stay.
            vars(own)["forward"] = partial(_RUN[type(own)], own, rows, site)
        module[0].register_forward_pre_hook(lambda _layer, given: rows.own(*given))
        module[division.whole].register_forward_pre_hook(
            lambda _layer, given: rows.gathered(given, division.read)
        )
        return super()._wrapped(module)


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

    @property
    def windows(self) -> list["Window"]:
        """What it reads along the rows, and along the columns."""
        kernels, strides = _pair(self.module.kernel_size), _pair(self.module.stride)
        sizes = self.input[2:], self.output[2:]
        return [Window(*each) for each in zip(kernels, strides, *sizes, strict=True)]


class Window(NamedTuple):
    """What an operator reads along the rows, or along the columns."""

    kernel: int
    stride: int
    size: int  # of the image
    outputs: int

    def reads(self, outputs: range) -> tuple[range, tuple[int, int]]:
        """The pixels for some of the outputs, and how many of padding stand before and after."""
        padding = max(0, (self.outputs - 1) * self.stride + self.kernel - self.size)
        first = outputs.start * self.stride - padding // 2
        end = first + (len(outputs) - 1) * self.stride + self.kernel
        around = max(0, -first), max(0, end - self.size)
        return _common(range(first, end), range(self.size)), around


class Division(NamedTuple):
    """How a model is divided by rows."""

    convolutions: list[Site]
    sites: list[Site]  # that run on rows
    whole: int  # the first layer that all processes run on whole images
    read: Sequence[torch.Size]  # what this layer reads


def meet(layers: Sequence[Layer], sample: Tree) -> tuple[list[Site], list[list[torch.Size]]]:
    """The modules that read several rows, in order, and the shapes that each layer gets."""
    sites: list[Site] = []
    inputs: list[list[torch.Size]] = []

    def met(layer: int, name: str, module: nn.Module, given: Any, output: Tensor) -> None:
        sites.append(Site(layer, name, module, given[0].shape, output.shape))

    value = map_leaves(Tensor, lambda t: t.to("meta"), sample)
    for index, layer in enumerate(on_meta(layers)):
        inputs.append([tensor.shape for tensor in flatten(value)[0]])
        for name, module in layer.named_modules():
            if type(module) in _RUN:
                module.register_forward_hook(partial(met, index, name))
        value = layer(value)
    return sites, inputs


def divide_rows(layers: Sequence[Layer], sample: Tree, T: int) -> Division:
    """Over T processes."""
    sites, inputs = meet(layers, sample)
    last = len(inputs) - 1
    whole = min([last, *(site.layer for site in sites if site.output[2] < T)])
    # The two convolutions of a factorized reduction get what it has read.
    reductions = [site.module for site in sites if isinstance(site.module, FactorizedReduction)]
    inside = {conv for module in reductions for conv in (module.even, module.odd)}
    return Division(
        [site for site in sites if isinstance(site.module, nn.Conv2d)],
        [site for site in sites if site.layer < whole and site.module not in inside],
        whole,
        inputs[whole][:1] if whole == last else inputs[whole],  # the last layer reads no skip
    )


def _on_what_it_reads(
    run: Callable[..., Tensor], module: nn.Module, rows: Rows, site: Site, x: Tensor
) -> Tensor:
    """What an operator makes of the pixels that this process's outputs depend on.

    `run` gets the module, what pads the pixels, and these.
    """
    vertical, horizontal = site.windows
    read = [vertical.reads(outputs) for outputs in rows.of(vertical.outputs)]
    _, above_and_below = read[rows.number]
    _, beside = horizontal.reads(range(horizontal.outputs))
    taken = rows.take(x, vertical.size, [some for some, _ in read])
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


# What a module runs in place of its forward.
_RUN: dict[type, Any] = {
    nn.BatchNorm2d: _normalise,
    nn.Conv2d: partial(_on_what_it_reads, _convolve),
    SameConv: partial(_on_what_it_reads, _convolve),
    SameMaxPool: partial(_on_what_it_reads, _maximum),
    nn.AvgPool2d: partial(_on_what_it_reads, _average),
    FactorizedReduction: partial(_on_what_it_reads, _reduce),
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
    rows, division = Rows(T), divide_rows(layers, sample, T)
    sent = [0] * T

    def add(shape: torch.Size, wanted: Sequence[range], *, backward: bool) -> None:
        N, C, H, W = shape
        for t, to in enumerate(rows.sent(H, wanted)):
            for u, some in enumerate(to):
                sent[t] += len(some) * byte_size((N, C, W))
                sent[u] += len(some) * byte_size((N, C, W)) * backward

    for site in division.sites:
        if isinstance(site.module, nn.BatchNorm2d):
            statistics = 2 * (T - 1) * byte_size((2, site.input[1]))
            sent = [size + statistics for size in sent]
        else:
            window = site.windows[0]
            wanted = [window.reads(outputs)[0] for outputs in rows.of(window.outputs)]
            add(site.input, wanted, backward=site.layer > 0)
    for shape in division.read:
        add(shape, [range(shape[2])] * T, backward=division.whole > 0)
    after = [site for site in division.convolutions if site.layer >= division.whole]
    undivided = _products(after) / _products(division.convolutions)
    return Counted([{"messages": size} for size in sent], undivided)


def byte_size(shape: Sequence[int]) -> int:
    """Of float32 numbers."""
    return 4 * math.prod(shape)


def _products(sites: Sequence[Site]) -> int:
    """Multiplications in the forward of convolutions."""
    return sum(math.prod(site.output) * site.module.weight[0].numel() for site in sites)
