"""The operations of AmoebaNet's cells, padded as TensorFlow's SAME does.

SAME gives ceil(size / stride) outputs, and an odd pixel of padding is added at the right and at the
bottom. So with stride 2 on an even size the padding is asymmetric, which torch's `padding=` cannot
express. No operation works in place, since a cell's input is also the next cell's skip.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair

# (input channels, filters F, stride) -> the operation, which has F output channels
Operation = Callable[[int, int, int], nn.Module]

BN_EPSILON = 1e-3  # the authors' value; their momentum is an argument of the models


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Pixels of padding before and after, so that ceil(size / stride) windows fit."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def _pad(
    input: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], fill: float
) -> tuple[Tensor, tuple[int, int]]:
    """The input, padded if the padding is asymmetric, and the padding that the operation adds."""
    top, bottom = same_padding(input.shape[2], kernel[0], stride[0])
    left, right = same_padding(input.shape[3], kernel[1], stride[1])
    if (top, left) == (bottom, right):
        return input, (top, left)
    return functional.pad(input, (left, right, top, bottom), value=fill), (0, 0)


class SameConv(nn.Conv2d):
    """A convolution: [N, C, H, W] -> [N, F, ceil(H / stride), ceil(W / stride)]."""

    def forward(self, input: Tensor) -> Tensor:
        input, padding = _pad(input, self.kernel_size, self.stride, 0.0)
        return functional.conv2d(
            input, self.weight, self.bias, self.stride, padding, groups=self.groups
        )


class SameMaxPool(nn.MaxPool2d):
    """A max pool: [N, C, H, W] -> [N, C, ceil(H / stride), ceil(W / stride)]."""

    def forward(self, input: Tensor) -> Tensor:
        kernel, stride = _pair(self.kernel_size), _pair(self.stride)
        input, padding = _pad(input, kernel, stride, -math.inf)  # which is never the maximum
        return functional.max_pool2d(input, kernel, stride, padding)


class FactorizedReduction(nn.Module):
    """Halves the size of a skip: [N, C, H, W] -> [N, F, ceil(H / 2), ceil(W / 2)].

    Half of the filters read the even pixels. The other half reads the odd pixels, that is, the even
    pixels of the image shifted by one.
    """

    kernel_size, stride = 2, 2  # of both together

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(channels, filters // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(channels, filters // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(filters, BN_EPSILON)

    def forward(self, input: Tensor) -> Tensor:
        input = functional.relu(input)
        shifted = functional.pad(input, (-1, 1, -1, 1))
        return self.norm(torch.cat((self.even(input), self.odd(shifted)), dim=1))


def conv(
    channels: int,
    filters: int,
    stride: int | tuple[int, int] = 1,
    kernel: int | tuple[int, int] = 1,
) -> nn.Module:
    convolution = SameConv(channels, filters, kernel, stride, bias=False)
    return nn.Sequential(nn.ReLU(), convolution, nn.BatchNorm2d(filters, BN_EPSILON))


def _bottleneck(*kernels: tuple[int, int]) -> Operation:
    """1x1 to a quarter of the filters, the kernels, which have the stride, and 1x1 to all."""

    def build(channels: int, filters: int, stride: int) -> nn.Module:
        narrow = max(filters // 4, 1)
        inside = []
        for height, width in kernels:
            strides = (stride if height > 1 else 1, stride if width > 1 else 1)
            inside.append(conv(narrow, narrow, strides, (height, width)))
        return nn.Sequential(conv(channels, narrow), *inside, conv(narrow, filters))

    return build


def _separable(size: int) -> Operation:
    """ReLU, depthwise size x size, pointwise, batch norm; twice, the first with the stride."""

    def half(channels: int, filters: int, stride: int) -> list[nn.Module]:
        depthwise = SameConv(channels, channels, size, stride, groups=channels, bias=False)
        pointwise = nn.Conv2d(channels, filters, 1, bias=False)
        return [nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(filters, BN_EPSILON)]

    def build(channels: int, filters: int, stride: int) -> nn.Module:
        return nn.Sequential(*half(channels, filters, stride), *half(filters, filters, 1))

    return build


def _identity(channels: int, filters: int, stride: int) -> nn.Module:
    if (channels, stride) == (filters, 1):
        return nn.Identity()
    return conv(channels, filters, stride)


def _max_pool(size: int) -> Operation:
    def build(channels: int, filters: int, stride: int) -> nn.Module:
        return _to_filters(SameMaxPool(size, stride), channels, filters)

    return build


def _average3x3(channels: int, filters: int, stride: int) -> nn.Module:
    assert stride == 1, "symmetric padding is SAME only without stride"
    pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return _to_filters(pool, channels, filters)


def _to_filters(pool: nn.Module, channels: int, filters: int) -> nn.Module:
    """The pool; if its input does not have F channels, a 1x1 convolution and batch norm follow."""
    if channels == filters:
        return pool
    project = nn.Conv2d(channels, filters, 1, bias=False)
    return nn.Sequential(pool, project, nn.BatchNorm2d(filters, BN_EPSILON))


OPERATIONS: dict[str, Operation] = {
    "identity": _identity,
    "1x1": conv,
    "3x3": _bottleneck((3, 3)),
    "1x7-7x1": _bottleneck((1, 7), (7, 1)),
    "sep3x3": _separable(3),
    "sep5x5": _separable(5),
    "max2x2": _max_pool(2),
    "max3x3": _max_pool(3),
    "avg3x3": _average3x3,
}
