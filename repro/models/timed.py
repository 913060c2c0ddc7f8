"""Layers of known duration: they wait where a real layer computes.

An ordinary sequence of layers, so any engine can run it, with real messages: it shows what the
engine itself costs, at numbers of stages for which a machine has no devices (fidelity "emulated").
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from repro.gpipe.runtime.clock import Waits, wait_until
from repro.models.model import Model, require


class _Wait(Function):
    """x and its gradient, or zeros where the width changes, each finished not before its time; nothing else takes any.

    Whatever is made is made before the wait, so that it takes no time of its own. Waits that follow
    one another end on time together, though each alone ends a little late.
    """

    waits = Waits()

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, elements: int, forward_s: float, backward_s: float
    ) -> Tensor:
        deadline = _Wait.waits.after(forward_s)
        ctx.backward_s = backward_s
        # as layers that compute do: some libraries recompute when it is asked for
        ctx.save_for_backward(x)
        ctx.weight = weight.shape
        output = x.view_as(x) if x.shape[1] == elements else x.new_zeros(len(x), elements)
        _Wait.waits.until(deadline)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        (x,) = ctx.saved_tensors  # asked for before B's own time begins
        deadline = _Wait.waits.after(ctx.backward_s)
        (gradient,) = gradients
        # A view of it is nobody else's: autograd would copy the gradient itself, and B would end
        # that much later.
        returned = gradient.view_as(x) if gradient.shape == x.shape else gradient.new_zeros(x.shape)
        nothing = gradient.new_zeros(ctx.weight)
        _Wait.waits.until(deadline)
        return returned, nothing, None, None, None


class TimedLayer(nn.Module):
    """[N, any] -> [N, elements], whose F takes forward_s seconds and whose B takes backward_s.

    Passes on what it gets if that is as wide, else zeros. One parameter, so that optimizers have
    something to do; it changes nothing, and its gradient is 0. `TimedSGD` takes update_s to update
    it.
    """

    def __init__(
        self, forward_s: float, backward_s: float, elements: int, update_s: float = 0.0
    ) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.elements = forward_s, backward_s, elements
        self.weight = nn.Parameter(torch.zeros(1))
        vars(self.weight)["update_s"] = update_s

    def forward(self, x: Tensor) -> Tensor:
        """Wait; return what is as wide as the layer."""
        return _Wait.apply(x, self.weight, self.elements, self.forward_s, self.backward_s)


class TimedSGD(torch.optim.SGD):
    """SGD whose step takes as long as the `update_s` of its parameters together, in seconds."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update; wait."""
        deadline = time.perf_counter()
        deadline += sum(
            getattr(p, "update_s", 0.0) for group in self.param_groups for p in group["params"]
        )
        loss = super().step(closure)
        wait_until(deadline)
        return loss


def timed(
    L: int = 8,
    forward_s: float | Sequence[float] = 0.002,
    backward_s: float | Sequence[float] = 0.004,
    elements: int | Sequence[int] = 1024,
    update_s: float | Sequence[float] = 0.0,
) -> Model:
    """L timed layers; by default B takes twice as long as F, the paper's ratio.

    Args:
        L: layers.
        forward_s: seconds that F (and R) of one micro-batch takes in a layer, whatever the
            micro-batch's size; or L of them, one per layer.
        backward_s: the same for B.
        elements: float32 numbers per example in the message that a layer sends on, so each boundary
            may have its own; the model's inputs are as wide as the first layer's message.
        update_s: seconds of each layer's part of an update; for the optimizer `TimedSGD` alone.
    """
    require(L >= 1, "L", L, "1 or more", "L=8")
    widths: Sequence[int] = _per_layer("elements", elements, L)
    require(all(n >= 1 for n in widths), "elements", elements, "1 or more", "elements=1024")
    durations = {"forward_s": forward_s, "backward_s": backward_s, "update_s": update_s}
    f, b, u = (_seconds(name, given, L) for name, given in durations.items())
    return Model(
        name="timed",
        layers=[partial(TimedLayer, *layer) for layer in zip(f, b, widths, u, strict=True)],
        batch=partial(_batch, widths[0]),
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


def _per_layer(name: str, given: Any, L: int) -> Sequence[Any]:
    """One number per layer."""
    many = [given] * L if isinstance(given, int | float) else given
    require(
        len(many) == L,
        name,
        given,
        f"a number or a list of L={L} numbers",
        f"L={len(many)} with this list",
    )
    return many


def _seconds(name: str, given: float | Sequence[float], L: int) -> Sequence[float]:
    """One duration per layer."""
    many: Sequence[float] = _per_layer(name, given, L)
    require(all(s >= 0 for s in many), name, given, "seconds, 0 or more", f"{name}=0.002")
    return many
