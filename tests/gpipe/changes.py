"""What the processes of `test_learnt.py` run; at module level so that they can import it."""

import random
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from random_networks import (
    WIDTH,
    Stepwise,
)
from torch import Tensor, nn

from repro.gpipe import Pipeline

MSE = nn.functional.mse_loss


def linear() -> nn.Module:
    """A plain layer."""
    return nn.Linear(WIDTH, WIDTH)


class DrawsLater(Stepwise):
    """Draws from Python's generator from some step on."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (random.random() if self.on else 1.0)


def draws(stages: int, checkpoint: str) -> tuple[list[float], Any]:
    """Losses if a layer of the last stage begins to draw, and the state of Python's generator."""
    torch.manual_seed(3)
    layers = [linear(), DrawsLater(2)]
    pipe = Pipeline(
        layers, stages, 2, balance=[2 // stages] * stages, checkpoint=checkpoint, device="cpu"
    )
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    random.seed(7)
    losses = []
    for step in range(4):
        for module in pipe.module.modules():
            if isinstance(module, Stepwise):
                module.step = step
        x = torch.ones(4, 3, WIDTH)
        losses.append(pipe.train_step(x, x, MSE, optimizer).loss)
    pipe.close()
    return losses, random.random()


def drawn_later() -> list[Any]:
    """For one stage and two, with and without recomputation."""
    found = [draws(2, "always"), draws(2, "never")]
    if dist.get_rank() == 0:
        found += [draws(1, "always"), draws(1, "never")]
    return found


class View(nn.Module):
    """A tensor and a view of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 1.0
        return y, y[:, 1:3]


class Halves(nn.Module):
    """Parts of one storage that have no element in common."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x * 1.0).chunk(2, -1)


class WritesToFirst(nn.Module):
    """Writes to the first of a pair."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0].mul_(2.0).sum(-1) + pair[1].sum(-1)


def overlapping_outputs() -> list[str]:
    """What a step says whose second stage writes to one of two tensors."""
    found = []
    for first in (Halves, View):
        pipe = Pipeline([first, WritesToFirst], 2, 2, balance=[1, 1], device="cpu")
        try:
            pipe.train_step(torch.ones(4, 6), torch.ones(4), MSE)
            found.append("accepted")
        except ValueError as error:
            found.append(str(error))
    return found


def too_many_micro_batches(stages: int) -> str:
    """What each rank says where M is larger than N."""
    pipe = Pipeline([linear() for _ in range(stages)], stages, 8, device="cpu")
    x = torch.ones(3, WIDTH) if pipe.rank == 0 else None
    try:
        pipe.train_step(x, torch.ones(3, WIDTH), MSE)
    except ValueError as error:
        return str(error)
    return "accepted"


def not_the_same_twice() -> str:
    """What each rank says of a layer whose F and R differ in what requires a gradient."""
    pipe = Pipeline([Flickering(), linear()], 2, 2, balance=[1, 1], device="cpu")
    try:
        pipe.train_step(torch.ones(4, WIDTH), torch.ones(4, WIDTH), MSE)
    except ValueError as error:
        return str(error)
    return "accepted"


class Flickering(nn.Module):
    """Detaches its output in every other call."""

    calls = count()  # of the class, so that no step can put it back

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y.detach() if next(self.calls) % 2 else y


def optimizer_on_one_stage() -> tuple[str, list[Any]]:
    """The error and the gradients on each rank if only the last one has an optimizer."""
    pipe = Pipeline([linear(), linear()], 2, 2, balance=[1, 1], device="cpu")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1) if pipe.is_last else None
    said = "accepted"
    try:
        pipe.train_step(torch.ones(4, WIDTH), torch.ones(4, WIDTH), MSE, optimizer)
    except ValueError as error:
        said = str(error)
    return said, [p.grad for p in pipe.parameters()]
