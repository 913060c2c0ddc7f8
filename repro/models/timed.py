"""Layers of known duration: they sleep for the time that a real layer would compute.

They are ordinary layers with real messages, so any engine can run them. They show the overhead of
the engine, also with more stages than a machine has devices (fidelity "emulated").
"""

from collections.abc import Callable, Sequence
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
    """The part of B for the gradient of a weight, which a schedule may split off for W."""

    def __init__(self, shape: torch.Size, seconds: float) -> None:
        self.shape, self.seconds = shape, seconds
        self.is_left = False

    def leave(self) -> Callable[[Tensor], list[Tensor]]:
        """Leave it to W, which calls what is returned; see `repro.gpipe.core.split`."""
        self.is_left = True
        return self.wait

    def wait(self, gradient: Tensor) -> list[Tensor]:
        deadline = _Wait.waits.after(self.seconds)
        nothing = gradient.new_zeros(self.shape)
        _Wait.waits.until(deadline)
        return [nothing]


class _Wait(Function):
    """Returns x after a given time, and its gradient in B; zeros if the width changes.

    The results are made before the sleep, so that they take no additional time.
    """

    waits = Waits()

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, elements: int, seconds: tuple[float, float, float]
    ) -> Tensor:
        forward_s, ctx.backward_s, weight_s = seconds
        deadline = _Wait.waits.after(forward_s)
        ctx.weight = _Weight(weight.shape, weight_s)
        ctx.leave_weight = ctx.weight.leave
        # Layers that compute save their input, and some libraries recompute when it is read.
        ctx.save_for_backward(x)
        output = x.view_as(x) if x.shape[1] == elements else x.new_zeros(len(x), elements)
        _Wait.waits.until(deadline)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (x,) = ctx.saved_tensors  # a recomputation happens now, before B's time begins
        left_s = ctx.weight.seconds if ctx.weight.is_left else 0.0
        deadline = _Wait.waits.after(ctx.backward_s - left_s)
        (gradient,) = gradients
        # A view, since autograd would copy the gradient itself, which would lengthen B.
        returned = gradient.view_as(x) if gradient.shape == x.shape else gradient.new_zeros(x.shape)
        nothing = gradient.new_zeros(ctx.weight.shape)
        _Wait.waits.until(deadline)
        return returned, nothing, None, None


class TimedLayer(nn.Module):
    """[N, any] -> [N, elements]: F takes forward_s seconds, B takes backward_s.

    The output is the input if it has the same width, else zeros. The parameters have no effect, and
    their gradients are 0. If a schedule splits B, weight_s seconds of it are for these gradients.
    """

    def __init__(
        self,
        forward_s: float,
        backward_s: float,
        elements: int,
        weight_s: float = 0.0,
        parameters: int = 1,
    ) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.elements = forward_s, backward_s, elements
        self.weight_s = weight_s
        self.weight = nn.Parameter(torch.zeros(parameters))

    def forward(self, x: Tensor) -> Tensor:
        seconds = self.forward_s, self.backward_s, self.weight_s
        return _Wait.apply(x, self.weight, self.elements, seconds)


def timed(
    L: Layers = 8,
    forward_s: Seconds | Sequence[Seconds] = 0.002,
    backward_s: Seconds | Sequence[Seconds] = 0.004,
    elements: Count | Sequence[Count] = 1024,
    weight_s: Seconds | Sequence[Seconds] | None = None,
    parameters: Count | Sequence[Count] = 1,
) -> Model:
    """A model of L timed layers; by default B takes twice as long as F, as in the paper.

    Every argument but L is one number for all layers, or a list of L numbers: seconds of F (and R)
    and of B of one micro-batch of any size, and float32 numbers per example in the output of a
    layer. `weight_s` is the part of B for the weights' gradients, for a schedule that splits B; by
    default it is half of B. The inputs of the model are as wide as the output of the first layer.
    Replicas sum the gradients of the parameters.
    """
    numbers: dict[str, Any] = {"forward_s": forward_s, "backward_s": backward_s}
    numbers |= {"elements": elements, "weight_s": weight_s}
    numbers["parameters"] = parameters
    for name, given in numbers.items():
        if given is None:
            given = [seconds / 2 for seconds in numbers["backward_s"]]
        numbers[name] = [given] * L if isinstance(given, int | float) else given
        if len(numbers[name]) != L:
            raise ValueError(f"{name}={given}: allowed is a number or a list of L={L} numbers")
    pairs = zip(numbers["weight_s"], numbers["backward_s"], strict=True)
    if any(weight > backward for weight, backward in pairs):
        raise ValueError(
            f"weight_s={weight_s}: is a part of backward_s={backward_s}; make it shorter"
        )
    return Model(
        name="timed",
        layers=[partial(TimedLayer, *layer) for layer in zip(*numbers.values(), strict=True)],
        batch=partial(_batch, numbers["elements"][0]),
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
