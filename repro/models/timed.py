"""Layers of known duration: they sleep for the time that a real layer would compute.

They are ordinary layers with real messages, so any engine can run them. They show the overhead of
the engine, also with more stages than a machine has devices (fidelity "emulated").
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.autograd import Function

from repro.gpipe.runtime.clock import Waits
from repro.models.arguments import Count, Layers
from repro.models.model import Model

Seconds = Annotated[float, Interval(ge=0)]


class _Weight:
    """The part of B for the gradient of the weight, which a schedule may split off for W."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_left = seconds, False

    def leave(self) -> Callable[[Tensor], list[Tensor]]:
        """Leave it to W, which calls what is returned; see `repro.gpipe.core.split`."""
        self.is_left = True
        return self.wait

    def wait(self, gradient: Tensor) -> list[Tensor]:
        deadline = _Wait.waits.after(self.seconds)
        nothing = gradient.new_zeros(1)
        _Wait.waits.until(deadline)
        return [nothing]


class _Wait(Function):
    """Returns x after a given time, and its gradient in B.

    The results are made before the sleep, so that they take no additional time.
    """

    waits = Waits()

    @staticmethod
    def forward(ctx: Any, x: Tensor, _weight: Tensor, layer: "TimedLayer") -> Tensor:
        deadline = _Wait.waits.after(layer.forward_s)
        ctx.backward_s, ctx.weight = layer.backward_s, _Weight(layer.weight_s)
        ctx.leave_weight = ctx.weight.leave
        # Layers that compute save their input, and some libraries recompute when it is read.
        ctx.save_for_backward(x)
        output = x.view_as(x)
        _Wait.waits.until(deadline)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        _ = ctx.saved_tensors  # a recomputation happens now, before B's time begins
        left_s = ctx.weight.seconds if ctx.weight.is_left else 0.0
        deadline = _Wait.waits.after(ctx.backward_s - left_s)
        (gradient,) = gradients
        # A view, since autograd would copy the gradient itself, which would lengthen B.
        returned, nothing = gradient.view_as(gradient), gradient.new_zeros(1)
        _Wait.waits.until(deadline)
        return returned, nothing, None


class TimedLayer(nn.Module):
    """[N, elements] -> the same: F takes forward_s seconds, B takes backward_s.

    The only parameter has no effect, and its gradient is 0. If a schedule splits B, half of it is
    for this gradient.
    """

    def __init__(self, forward_s: float, backward_s: float, elements: int) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.elements = forward_s, backward_s, elements
        self.weight_s = backward_s / 2
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return _Wait.apply(x, self.weight, self)


def timed(
    L: Layers = 8, forward_s: Seconds = 0.002, backward_s: Seconds = 0.004, elements: Count = 1024
) -> Model:
    """A model of L timed layers; by default B takes twice as long as F, as in the paper.

    `forward_s` and `backward_s` are the seconds of F (and R) and of B of one micro-batch of any
    size; `elements` are the float32 numbers per example in the input and output of a layer.
    """
    return Model(
        name="timed",
        layers=[partial(TimedLayer, forward_s, backward_s, elements)] * L,
        batch=partial(_batch, elements),
        loss=_loss,
        unit="examples/s",
        labels={"compute": "timed wait"},
    )


def _batch(elements: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random inputs [N, elements] and targets [N] of 0; only the loss depends on them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, elements, generator=generator), torch.zeros(N)


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(output.mean(1), targets)
