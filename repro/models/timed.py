"""Layers of known duration: they wait where a real layer computes.

An ordinary sequence of layers, so any engine can run it, with real messages: it shows what the engine itself costs, at
numbers of stages for which a machine has no devices (fidelity "emulated").
"""

import ctypes
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from repro.models.model import Model, require

_TIMER_SLACK = 29  # prctl's PR_SET_TIMERSLACK


@cache
def _sharp(_thread: int) -> None:
    """Have Linux end this thread's sleeps on time and not up to 50 microseconds late, as it does to save energy."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def wait_until(deadline: float) -> None:
    """Sleep until `deadline` on the clock of time.perf_counter.

    Never spins: stages that wait side by side would take the cores from each other and from the engine.
    """
    _sharp(threading.get_ident())
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


class _Wait(Function):
    """x itself and its gradient, each finished not before its time; nothing else takes any."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        deadline = time.perf_counter() + forward_s
        ctx.backward_s = backward_s
        ctx.save_for_backward(x)  # as layers that compute do: some libraries recompute when it is asked for
        ctx.weight = weight.shape
        output = x.view_as(x)
        wait_until(deadline)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        assert len(ctx.saved_tensors) == 1  # asked for before B's own time begins
        deadline = time.perf_counter() + ctx.backward_s
        (gradient,) = gradients
        nothing = gradient.new_zeros(ctx.weight)
        wait_until(deadline)
        return gradient, nothing, None, None


class TimedLayer(nn.Module):
    """[N, elements] -> the same, whose F takes forward_s seconds and whose B takes backward_s.

    One parameter, so that optimizers have something to do; it changes nothing, and its gradient is 0.
    """

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Pass x on; wait."""
        return _Wait.apply(x, self.weight, self.forward_s, self.backward_s)


def timed(
    L: int = 8,
    forward_s: float | Sequence[float] = 0.002,
    backward_s: float | Sequence[float] = 0.004,
    elements: int = 1024,
) -> Model:
    """L timed layers; by default B takes twice as long as F, the paper's ratio.

    Args:
        L: layers.
        forward_s: seconds that F (and R) of one micro-batch takes in a layer, whatever the micro-batch's size; or L
            of them, one per layer.
        backward_s: the same for B.
        elements: float32 numbers per example in the message between two layers.
    """
    require(L >= 1, "L", L, "1 or more", "L=8")
    require(elements >= 1, "elements", elements, "1 or more", "elements=1024")
    durations = zip(_per_layer("forward_s", forward_s, L), _per_layer("backward_s", backward_s, L), strict=True)
    return Model(
        name="timed",
        layers=[partial(TimedLayer, f, b) for f, b in durations],
        batch=partial(_batch, elements),
        loss=_loss,
        unit="examples/s",
        labels={"compute": "timed wait"},
    )


def _batch(elements: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random numbers [N, elements] and targets [N]; nothing depends on them but the loss."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, elements, generator=generator), torch.zeros(N)


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance of each example's mean from its target."""
    return (output.mean(1) - targets).square().mean()


def _per_layer(name: str, seconds: float | Sequence[float], L: int) -> Sequence[float]:
    """One duration per layer."""
    many = [seconds] * L if isinstance(seconds, int | float) else seconds
    require(len(many) == L, name, seconds, f"a number or a list of L={L} numbers", f"L={len(many)} with this list")
    require(all(s >= 0 for s in many), name, seconds, "seconds, 0 or more", f"{name}=0.002")
    return many
