"""Models that people write, each of which trains as in plain PyTorch or is refused in one line."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from repro.gpipe import Pipeline

WIDTH, N, M = 6, 12, 3


class Call(nn.Module):
    """A function of a layer and a value as a layer."""

    def __init__(self, function: Callable[[Any, Any], Any], module: nn.Module | None = None):
        super().__init__()
        self.function, self.module = function, module or nn.Identity()

    def forward(self, value: Any) -> Any:
        return self.function(self.module, value)


class Marked(torch.Tensor):
    """A tensor of a class of its own."""


class Scaled(nn.Sequential):
    """A sequence that computes something itself."""

    def forward(self, value: Any) -> Any:
        return 10 * super().forward(value)


def linear() -> nn.Module:
    """The plain layer."""
    return nn.Linear(WIDTH, WIDTH)


def by_reference() -> list[nn.Module]:
    """The last layer uses the first one's weight, which it does not hold."""
    first = linear()
    return [first, nn.Tanh(), linear(), Call(lambda _, x, held=first: held(x))]


def counting() -> list[nn.Module]:
    """A layer counts its calls in a list."""
    calls: list[int] = []

    def count(module: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return module(x) * len(calls)

    return [Call(count, linear()), linear(), linear()]


def gradient(module: nn.Module, x: Tensor) -> Tensor:
    """A layer that differentiates a function of what it makes of its input."""
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(module(inner).square().sum(), inner, create_graph=True)
    return module(x + slope)


def hooked(module: nn.Module, x: Tensor) -> Tensor:
    """A layer that halves the gradient of its input."""
    if x.requires_grad:
        x.register_hook(lambda grad: grad / 2)
    return module(x)


def norm_by_hand(module: Any, x: Tensor) -> Tensor:
    """Batch norm on a module's buffers, without a call of the module."""
    return functional.batch_norm(x, module.running_mean, module.running_var, training=True)


CASES: dict[str, Callable[[], Any]] = {
    "a class at a boundary": lambda: [
        Call(lambda m, x: m(x).as_subclass(Marked), linear()),
        nn.Tanh(),
        Call(lambda m, x: m(x.as_subclass(torch.Tensor)), linear()),
    ],
    "a sequence with a forward": lambda: Scaled(linear(), nn.Tanh(), linear()),
    "a weight by reference": by_reference,
    "state in a list": counting,
    "a derivative in a layer": lambda: [Call(gradient, linear()), nn.Tanh(), linear()],
    "a hook on an input": lambda: [linear(), nn.Tanh(), Call(hooked, linear())],
    "batch norm by hand": lambda: [linear(), Call(norm_by_hand, nn.BatchNorm1d(WIDTH)), linear()],
}


def batch() -> tuple[Tensor, Tensor]:
    """A mini-batch."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, WIDTH, generator=generator), torch.randn(N, WIDTH, generator=generator)


def model(case: str) -> Any:
    """The layers, always with the same weights."""
    torch.manual_seed(3)
    return CASES[case]()


def trained(*cases: str) -> dict[str, dict[str, Tensor]]:
    """This stage's state after two steps of each case."""
    states = {}
    for case in cases:
        pipe = Pipeline(model(case), 2, M, device="cpu", balance="uniform")
        own = torch.optim.SGD(pipe.parameters(), lr=0.1)
        for _ in range(2):
            pipe.train_step(*batch(), functional.mse_loss, own)
        pipe.close()
        states[case] = dict(pipe.module.state_dict())
    return states


def start_of_replicas() -> dict[str, Tensor]:
    """Weights of a replica whose module was drawn with a seed of its own."""
    torch.manual_seed(dist.get_rank())
    pipe = Pipeline([linear()], 1, M, replicas=2, device="cpu")
    pipe.close()
    return dict(pipe.module.state_dict())
