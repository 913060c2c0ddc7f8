import time

import pytest
import torch
from pipelined import FORWARD_S, waiting

from repro.gpipe import launch
from repro.models import build
from repro.models.timed import TimedLayer, TimedSGD


def seconds(action) -> float:
    # a wait behind a sleep makes nothing good of what the one before it ended late
    time.sleep(2e-3)
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_forward_and_backward_take_their_own_time():
    layer = TimedLayer(0.01, 0.03, 16)
    x = torch.randn(4, 16, requires_grad=True)
    forward, backward = [], []
    for _ in range(5):
        forward.append(seconds(lambda: layer(x)))
        backward.append(seconds(layer(x).sum().backward))
    assert 0.01 <= min(forward) < 0.02
    assert 0.03 <= min(backward) < 0.045


def test_it_passes_on_what_it_gets():
    layer = TimedLayer(0.0, 0.0, 5)
    x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: layer.double()(a), (x,))
    output = layer(x)
    assert output.data_ptr() == x.data_ptr(), "no copy: a message of any size costs no computing"
    output.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 0


def test_an_update_takes_the_time_of_its_layers_together():
    model = build("timed", L=3, update_s=[0.01, 0.0, 0.02])
    layers = [factory() for factory in model.layers]
    optimizer = TimedSGD([p for layer in layers for p in layer.parameters()], lr=0.5)
    assert 0.03 <= min(seconds(optimizer.step) for _ in range(3)) < 0.04
    assert seconds(TimedSGD(layers[1].parameters()).step) < 0.01


def test_the_engine_is_as_quick_as_arithmetic_and_never_quicker():
    """(M+K-1)F + M(R+B) + (K-1)B; with late recompute (M+K-1)(F+R+B), and a margin."""
    ran = launch(waiting, stages=4)[0]
    for (K, M, schedule), (seconds, bubble, parts) in ran.items():
        early = (M + K - 1) + 3 * M + 2 * (K - 1)
        optimum = FORWARD_S * (early if schedule == "gpipe" else 4 * (M + K - 1))
        assert optimum <= seconds < 1.3 * optimum
        work = 4 * M * FORWARD_S
        assert bubble == pytest.approx(1 - work / optimum, abs=0.1)
        assert parts["bubble"] == pytest.approx(1 - work / optimum, abs=0.1)
        assert parts["computation"] + parts["recompute"] == pytest.approx(work / seconds, abs=0.1)
