import itertools
import math

import pytest
import torch
from torch import Tensor

from repro.models.operations import OPERATIONS, FactorizedReduction, SameConv, SameMaxPool

SIZES = [(5, 8), (7, 4), (1, 2)]


def windows(x: Tensor, kernel: tuple[int, int], stride: int, fill: float) -> Tensor:
    """[H, W] -> [out H, out W, kernel...]: TensorFlow's rule, element by element."""
    H, W = x.shape
    out = math.ceil(H / stride), math.ceil(W / stride)
    total = [max((o - 1) * stride + k - n, 0) for o, k, n in zip(out, kernel, (H, W), strict=True)]
    result = torch.full((*out, *kernel), fill)
    for r, c, dr, dc in itertools.product(*map(range, (*out, *kernel))):
        row, column = r * stride + dr - total[0] // 2, c * stride + dc - total[1] // 2
        if 0 <= row < H and 0 <= column < W:
            result[r, c, dr, dc] = x[row, column]
    return result


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (5, 5), (1, 7), (7, 1)])
def test_convolution_pads_as_tensorflow_does(kernel, stride, size):
    conv = SameConv(1, 1, kernel, stride, bias=False)
    x = torch.randn(size)
    expected = (windows(x, kernel, stride, 0.0) * conv.weight[0, 0]).sum((-1, -2))
    torch.testing.assert_close(conv(x[None, None])[0, 0], expected)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [2, 3])
def test_padding_of_a_max_pool_never_wins(kernel, stride, size):
    x = -1 - torch.rand(size)  # zeros as padding would win
    expected = windows(x, (kernel, kernel), stride, -math.inf).amax((-1, -2))
    assert torch.equal(SameMaxPool(kernel, stride)(x[None, None])[0, 0], expected)


@pytest.mark.parametrize("size", SIZES)
def test_factorized_reduction_sees_even_and_odd_pixels(size):
    H, W = size
    layer = FactorizedReduction(1, 2).eval()
    with torch.no_grad():
        layer.even.weight.fill_(1)
        layer.odd.weight.fill_(1)
    x = torch.rand(2, 1, H, W)
    even, odd = layer(x).unbind(1)
    shifted = torch.zeros(2, H + 1, W + 1)
    shifted[:, :H, :W] = x[:, 0]
    scale = (1 + layer.norm.eps) ** -0.5
    torch.testing.assert_close(even, x[:, 0, ::2, ::2] * scale)
    torch.testing.assert_close(odd, shifted[:, 1::2, 1::2] * scale)


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_works_in_place(name):
    x = torch.randn(2, 8, 6, 6)
    before = x.clone()
    OPERATIONS[name](8, 8, 1)(x)
    assert torch.equal(x, before)
