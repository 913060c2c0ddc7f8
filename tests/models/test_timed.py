import pytest
import torch
from pipelined import FORWARD_S, waiting

from repro.gpipe import launch
from repro.models.timed import TimedLayer


def test_it_passes_on_what_it_gets():
    layer = TimedLayer(0.0, 0.0, 5)
    x = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: layer.double()(a), (x,))
    output = layer(x)
    assert output.data_ptr() == x.data_ptr(), "no copy: a message of any size costs no computing"
    output.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.item() == 0


def test_the_engine_is_as_quick_as_arithmetic_and_never_quicker():
    """(M+K-1)F + M(R+B) + (K-1)B; with late recompute (M+K-1)(F+R+B), and a margin."""
    ran = launch(waiting, stages=4)[0]
    for (K, M, schedule), step in ran.items():
        early = (M + K - 1) + 3 * M + 2 * (K - 1)
        optimum = FORWARD_S * (early if schedule == "gpipe" else 4 * (M + K - 1))
        assert optimum <= step.step_time < 1.3 * optimum
        work = 4 * M * FORWARD_S
        assert step.idle_over_total == pytest.approx(1 - work / optimum, abs=0.1)
