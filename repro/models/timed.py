"""Layers of known duration: they wait where a real layer computes.

An ordinary sequence of layers, so any engine can run it, with real messages: it shows what the engine itself costs, at
numbers of stages for which a machine has no devices (fidelity "emulated").
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from repro.models.model import Model, require

_FINAL = 0.0005  # seconds; a sleep may end this much late, so the last ones are shorter
_SHORTEST_SLEEP = 0.00002


def wait_until(deadline: float) -> None:
    """Sleep until `deadline` on the clock of time.perf_counter.

    Never spins: stages that wait side by side would take the cores from each other and from the engine.
    """
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left - _FINAL if left > 2 * _FINAL else max(left / 2, _SHORTEST_SLEEP))


class _Wait(Function):
    """x + weight and its gradient, each finished not before its time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward_s: float, backward_s: float) -> Tensor:
        deadline = time.perf_counter() + forward_s
        ctx.backward_s = backward_s
        ctx.save_for_backward(x)  # as layers that compute do: some libraries recompute when it is asked for
        output = x + weight
        wait_until(deadline)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        assert len(ctx.saved_tensors) == 1  # asked for before B's own time begins
        deadline = time.perf_counter() + ctx.backward_s
        (gradient,) = gradients
        weight_gradient = gradient.sum().view(1)
        wait_until(deadline)
        return gradient, weight_gradient, None, None


class TimedLayer(nn.Module):
    """[N, elements] -> the same, whose F takes forward_s seconds and whose B takes backward_s.

    One parameter, so that optimizers have something to do.
    """

    def __init__(self, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Add the parameter; wait."""
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
