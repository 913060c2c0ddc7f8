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
EXAMPLES = (7, 4)  # of the two replicas
SMALL_BUCKET = 200  # bytes: a weight, or two biases
PLAIN = nn.functional.mse_loss
LAYERS: list[Layer] = [linear, nn.Tanh, linear, linear]


def batch(replica: int, n: int | None = None) -> tuple[Tensor, Tensor]:
    """One replica's own mini-batch."""
    generator = torch.Generator().manual_seed(10 + replica)
    x, y = (torch.randn(n or EXAMPLES[replica], WIDTH, generator=generator) for _ in range(2))
    return x, y


def optimizer_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One that tells no gradient from a gradient of zeros."""
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.1)


def _replace(pipe: Pipeline) -> None:
    torch.manual_seed(3)
    pipe.module[2].weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


CHANGES: dict[str, Callable[[Pipeline], object]] = {
    "replaced": _replace,
    "weight norm": lambda pipe: nn.utils.parametrizations.weight_norm(pipe.module[2]),
    "thawed": lambda pipe: pipe.module[2].requires_grad_(True),
}


def changed(case: str, replicas: int, *, late: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights where parameters change once the Pipeline is built, or one step later.

    A single replica gets the mini-batches of all of them.
    """
    pipe = Pipeline(LAYERS, 1, M * D // replicas, replicas=replicas, device="cpu", seed=4)
    pipe.module[2].requires_grad_(case != "thawed")
    parts = [batch(d, 8) for d in range(D)]
    whole = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    x, y = parts[pipe.replica] if replicas > 1 else whole
    losses = []
    for step in range(STEPS):
        if step == late:
            CHANGES[case](pipe)
        losses.append(pipe.train_step(x, y, PLAIN, optimizer_of(list(pipe.parameters()))).loss)
    pipe.close()
    return losses, {key: value.detach().clone() for key, value in pipe.module.state_dict().items()}


def all_changes() -> dict[tuple[str, bool], Any]:
    """Every change of parameters, at once and late."""
    return {(case, late): changed(case, D, late=late) for case in CHANGES for late in (False, True)}


class Recording:
    """A process group that notes what is summed, and when."""

    def __init__(self, group: Any, events: list[Any]) -> None:
        self._group, self._events = group, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[Tensor]) -> dist.Work:
        """Note the numbers of elements."""
        self._events.append(tensors[0].numel())
        return self._group.allreduce(tensors)


def bucketed(stages: int) -> tuple[list[Any], dict[str, Tensor]]:
    """What the last backward of a step did, with small buckets; and the gradients."""
    events: list[Any] = []
    before, replicas.BUCKET = replicas.BUCKET, SMALL_BUCKET
    pipe = Pipeline(LAYERS, stages, M, replicas=D, balance="uniform", device="cpu", seed=4)
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
    pipe.train_step(*batch(pipe.replica), PLAIN)
    pipe.close()
    replicas.BUCKET = before
    return events, {key: p.grad for key, p in pipe.module.named_parameters() if p.grad is not None}


def everything() -> dict[Any, Any]:
    """K = 2 on four processes, K = 1 on two of them."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for K in (2, 1):
        if rank < K * D:
            found["bucketed", K] = bucketed(K)
    return found
