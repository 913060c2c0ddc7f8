"""Extents of matrix products, and padding to the tiles of a matrix unit, against hand counts."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.costs.counter import Counter
from repro.costs.device import load
from repro.costs.products import Extents, padding
from repro.costs.roofline import operator_seconds
from repro.costs.trace import Op


@pytest.mark.parametrize(
    ("product", "tile", "factor"),
    [
        ((128, 256, 384), 128, 1.0),
        ((64, 128, 128), 128, 2.0),  # half of the rows are padding
        ((64, 64, 64), 128, 8.0),
        ((129, 128, 128), 128, 256 / 129),
        ((129, 1, 7), 1, 1.0),
    ],
)
def test_padding_rounds_each_extent_up_to_the_tile(product, tile, factor: float):
    assert padding(Extents(*product), tile) == pytest.approx(factor)


def products_of(layer: nn.Module, inputs: Tensor) -> tuple[list, list]:
    """Extents of every operator with FLOPs: of F, and of B."""
    counter = Counter([layer], lambda outputs, _: outputs.sum())
    layer_trace = counter.layer(0, inputs)
    return (
        [op.product for op in layer_trace.ops if op.flops],
        [op.product for op in layer_trace.ops_backward if op.flops],
    )


def test_extents_of_a_convolution_are_pixels_and_channels_also_in_its_backward():
    layer = nn.Conv2d(16, 24, (1, 7), stride=2, padding=(0, 3))
    forward, backward = products_of(layer, torch.zeros(3, 16, 10, 10))
    assert forward == backward == [(3 * 5 * 5, 16, 24, 7)]


class Attention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


def test_extents_of_fused_attention_are_queries_head_width_and_keys():
    assert products_of(Attention(), torch.zeros(2, 4, 20, 8))[0] == [(20, 8, 20, 1)]


def test_padded_work_takes_its_factor_longer_and_hides_more_of_the_bytes():
    tpu = load("tpu-v2")
    work = 2 * 64**3
    op = Op("mm", work, 2 * 4 * 64**2, 4 * 64**2, Extents(64, 64, 64))
    time = operator_seconds(op, tpu)
    seconds = work / tpu.matmul_flops.value
    assert time.matmul == pytest.approx(seconds)
    assert time.padding == pytest.approx(7 * seconds)
    more_bytes = Op("mm", work, 10**6, 0, Extents(64, 64, 64))
    moved = 10**6 / tpu.bytes_per_second.value
    assert time.memory == 0  # its bytes take less time than the padded work
    assert operator_seconds(more_bytes, tpu).memory == pytest.approx(moved - 8 * seconds)
    assert operator_seconds(op, load("v100")).padding == 0
