"""What the processes of `test_replicas.py` run; at module level so that they can import it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from examples import WIDTH, linear
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.core import replicas
from repro.gpipe.core.layers import Layer
from repro.gpipe.schedule.actions import Cell

M, D, STEPS = 2, 2, 3
SMALL_BUCKET = 200  # bytes: a weight, or two biases
PLAIN = nn.functional.mse_loss
LAYERS: list[Layer] = [linear, nn.Tanh, linear, linear]


def batch(replica: int, n: int) -> tuple[Tensor, Tensor]:
    """One replica's own mini-batch."""
    generator = torch.Generator().manual_seed(10 + replica)
    x, y = (torch.randn(n, WIDTH, generator=generator) for _ in range(2))
    return x, y


def _replace(pipe: Pipeline) -> None:
    torch.manual_seed(3)
    pipe.module[2].weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


CHANGES: dict[str, Callable[[Pipeline], object]] = {
    "replaced": _replace,
    "weight norm": lambda pipe: nn.utils.parametrizations.weight_norm(pipe.module[2]),
    "thawed": lambda pipe: pipe.module[2].requires_grad_(True),
}


def changed(case: str, replicas: int) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights where parameters change after a step.

    A single replica gets the mini-batches of all of them.
    """
    pipe = Pipeline(LAYERS, 1, M * D // replicas, replicas=replicas, device="cpu", seed=4)
    pipe.module[2].requires_grad_(case != "thawed")
    parts = [batch(d, 8) for d in range(D)]
    x, y = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    x, y = parts[pipe.replica] if replicas > 1 else (x, y)
    losses = []
    for step in range(STEPS):
        if step == 1:
            CHANGES[case](pipe)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.2, weight_decay=0.1)
        losses.append(pipe.train_step(x, y, PLAIN, optimizer).loss)
    pipe.close()
    return losses, {key: value.detach().clone() for key, value in pipe.module.state_dict().items()}


class Recording:
    """A process group that notes how many elements are summed, and when."""

    def __init__(self, group: Any, events: list[Any]) -> None:
        self._group, self._events = group, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[Tensor]) -> dist.Work:
        self._events.append(tensors[0].numel())
        return self._group.allreduce(tensors)


def bucketed() -> list[Any]:
    """What the last backward of a step did, with small buckets."""
    events: list[Any] = []
    before, replicas.BUCKET = replicas.BUCKET, SMALL_BUCKET
    pipe = Pipeline(LAYERS, 1, M, replicas=D, balance="uniform", device="cpu", seed=4)
    copies = pipe.engine.replicas
    assert copies is not None
    copies._group = Recording(copies._group, events)
    backward = pipe.held.backward

    def noted(cell: Cell, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        events.append("B begins")
        result = backward(cell, gradients)
        events.append("B ends")
        return result

    pipe.held.backward = noted
    pipe.train_step(*batch(pipe.replica, (7, 4)[pipe.replica]), PLAIN)
    pipe.close()
    replicas.BUCKET = before
    return events


def everything() -> dict[str, Any]:
    """On two replicas."""
    return {"bucketed": bucketed(), **{case: changed(case, D) for case in CHANGES}}
