"""Roofline times against closed forms: layers whose operations and bytes are known by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from predictions.curve import measured
from repro.costs.counter import Counter
from repro.costs.device import Device, load
from repro.costs.fake import mini_batch
from repro.costs.products import Extents
from repro.costs.roofline import head, layers, operator_seconds
from repro.costs.trace import Op
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.models import build

N, W = 16, 8  # examples of a micro-batch, width of a layer
X = torch.zeros(N, W)
LINK = LinkSpeed(latency=1e-5, bytes_per_second=2e9, overlap=False)
FREE = 1e19  # the greatest rate


def machine(matmul: float, memory: float, launch: float = 0.5, other: float = 1e12) -> Device:
    """So slow that its times are easily written down."""
    about = {"name": "slow", "title": "made up", "precision": "float32", "date": "2026-11-21"}
    rates = {"matmul_flops": matmul, "other_flops": other, "bytes_per_second": memory}
    return measured("made up", LINK, **about, **rates, launch_s=launch, memory=2**30)


def linear() -> nn.Module:
    return nn.Linear(W, W)


def counter(made: list, optimizer: Any = torch.optim.RMSprop) -> Counter:
    return Counter(made, functional.mse_loss, optimizer)


def test_an_operator_takes_what_its_work_or_its_bytes_take_and_a_launch():
    op = Op("mm", flops=1000, read=300, written=100)
    assert operator_seconds(op, machine(100, 400)) == 10 + 0.5
    assert operator_seconds(op, machine(1000, 100)) == 4 + 0.5
    other = Op("add.Tensor", flops=0, read=80, written=40)
    assert operator_seconds(other, machine(1, 60)) == 2 + 0.5
    # ten float32
    assert operator_seconds(other, machine(1, 60, other=2)) == 5 + 0.5
    assert operator_seconds(Op("empty.memory_format", 0, 0, 0), machine(1, 1)) == 0


def test_a_linear_layer_by_hand():
    """y = x W' + b; B makes dx and dW, sums db, and adds both gradients to those that are there."""
    x, weight, bias = 4 * N * W, 4 * W * W, 4 * W  # bytes; y, dx and dy are as large as x
    flops = 2 * N * W * W
    time = layers(counter([linear] * 3), X, machine(matmul=1e12, memory=1.0))[1]
    assert time.forward == pytest.approx(x + weight + bias + x + 0.5), "all of it bytes"
    moved = (x + weight + x) + (x + x + weight) + (x + bias) + 3 * bias + 3 * weight
    assert time.backward == pytest.approx(moved + 5 * 0.5)
    time = layers(counter([linear] * 3), X, machine(matmul=1.0, memory=1e12))[1]
    assert time.forward == flops + 0.5, "all of it work"
    assert time.backward == pytest.approx(2 * flops + 5 * 0.5)
    assert (time.activation_bytes, time.gradient_bytes, time.parameters) == (x, x, W * W + W)


@pytest.mark.parametrize(
    ("optimizer", "copies"), [(None, 0), (torch.optim.SGD, 3), (torch.optim.Adagrad, 5)]
)
def test_an_update_moves_parameters_gradients_and_state(optimizer, copies: int):
    """Parameters and state read and written, gradients read; Adagrad's state has step counts."""
    time = layers(counter([linear] * 2, optimizer), X, machine(1.0, 1.0))[0]
    steps = 2 * 2 * 4 if optimizer is torch.optim.Adagrad else 0
    assert time.update == copies * 4 * (W * W + W) + steps


def test_a_transformer_at_the_papers_size_multiplies_two_operations_for_each_parameter_and_token():
    """FLOPs of parameters, and 2 T d of attention per layer and token; an embedding has none."""
    L, d, V, T = 48, 2048, 32000, 1024
    model = build("transformer", L=L)
    inputs, targets = model.batch(1, 0)
    made = Counter(model.layers, model.loss, torch.optim.RMSprop)
    one_flop = machine(matmul=1.0, memory=FREE, launch=0.0, other=FREE)  # a second
    times = layers(made, mini_batch(inputs, 2), one_flop)
    loss = head(made, inputs, targets, one_flop)
    parameters = sum(time.parameters for time in times)
    assert parameters == 131_104_000 + 50_358_272 * L
    matrices = L * (4 * d * d + 2 * d * 8192) + d * V
    assert matrices == pytest.approx(parameters - V * d, rel=1e-3)  # the rest are biases and norms
    flops = 2 * T * 2 * (matrices + L * 2 * T * d)  # of two sequences
    assert sum(time.forward for time in times) == pytest.approx(flops)
    assert sum(time.backward for time in times) == pytest.approx(2 * flops)
    assert 0 < loss.forward < 1, "no products"


@pytest.mark.slow
def test_amoebanet_at_the_papers_size_multiplies_what_is_known_of_each_layer():
    """Multiply-adds of one image, counted apart for torchgpipe's network, 15.170e9 in all.

    Ours is the authors' network: stem of 32 filters and stem cells of D/4 and D/2, where torchgpipe
    has D/4, D/2 and D. So the first layers differ, up to the second normal cell, and nothing behind
    them but 1001 classes for 1000.
    """
    normal, first, second, reduction = [0.706] * 4, 0.552, 0.655, 1.037
    behind_reduction = [reduction, first, second, *normal]
    same = [*normal, *behind_reduction, *behind_reduction, 0.004]
    model = build("amoebanet-d", L=18, D=256)
    inputs, _ = model.batch(1, 0)
    one_flop = machine(matmul=1.0, memory=FREE, launch=0.0, other=FREE)  # a second
    times = layers(Counter(model.layers, model.loss), mini_batch(inputs, 1), one_flop)
    found = [time.forward / 2e9 for time in times]
    assert found[5:] == pytest.approx(same, abs=6e-4)
    theirs = [0.022, 0.421, 0.575, 0.527, 0.655]
    assert 15.170 - sum(found) == pytest.approx(sum(theirs) - sum(found[:5]), abs=6e-3)
    assert sum(found) == pytest.approx(14.194, abs=1e-3)
    # The skip travels too: 802,816 numbers behind each of the first normal cells' pairs.
    assert times[5].activation_bytes == 4 * 2 * 802_816


def test_padded_work_takes_its_factor_longer_and_hides_more_of_the_bytes():
    tpu = load("tpu-v2")
    work = 2 * 64**3
    op = Op("mm", work, 2 * 4 * 64**2, 4 * 64**2, Extents(64, 64, 64))
    seconds = work / tpu.matmul_flops.value
    launch = tpu.launch_s.value
    assert operator_seconds(op, tpu) == pytest.approx(8 * seconds + launch)
    more_bytes = replace(op, read=10**6, written=0)
    moved = 10**6 / tpu.bytes_per_second.value
    assert operator_seconds(more_bytes, tpu) == pytest.approx(moved + launch)
    gpu = load("v100")  # without tiles
    assert operator_seconds(op, gpu) == operator_seconds(replace(op, product=None), gpu)
