"""What the processes of `test_loops.py` run; at module level so that they can import it."""

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from repro.gpipe import Pipeline

N, M, D, WIDTH = 7, 3, 2, 6
LOSS = nn.functional.mse_loss


def model() -> nn.Sequential:
    """Five layers; the third has no parameters."""
    torch.manual_seed(2)
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return nn.Sequential(linear[0], linear[1], nn.Tanh(), linear[2], linear[3])


CUTS = {1: [5], 2: [2, 3], 3: [2, 1, 2]}


def pipeline(stages: int, copies: int = 1) -> tuple[Pipeline, torch.optim.Optimizer]:
    """A pipeline, and an optimizer that exists also on a stage without parameters."""
    pipe = Pipeline(model(), stages, M, replicas=copies, balance=CUTS[stages], device="cpu")
    return pipe, torch.optim.SGD([{"params": list(pipe.parameters())}], lr=0.1, momentum=0.9)


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The mini-batch of all replicas."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(D * N, WIDTH, generator=generator) for _ in range(2))
    return x, y


def batches(epoch: int) -> DataLoader[Any]:
    """An epoch's mini-batches: 7, 7 and 4 examples."""
    x, y = batch(99)
    x, y = torch.cat([x, x[:4]]), torch.cat([y, y[:4]])
    order = torch.Generator().manual_seed(epoch)
    return DataLoader(TensorDataset(x, y), batch_size=N, shuffle=True, generator=order)


def loaded(stages: int) -> dict[str, Any]:
    """Losses of two epochs that the first and last stage read; mini-batches read here."""
    pipe, optimizer = pipeline(stages)
    losses, read = [], 0
    for epoch in range(2):
        loader = batches(epoch)
        own: Iterator[Any] = iter(loader) if pipe.is_first or pipe.is_last else repeat((None, None))
        for _ in range(len(loader)):
            x, y = next(own)
            read += x is not None
            x, y = x if pipe.is_first else None, y if pipe.is_last else None
            losses.append(pipe.train_step(x, y, LOSS, optimizer).loss)
    pipe.close()
    return {"losses": losses, "read": read, "state": dict(pipe.module.state_dict())}


def plain_loaded() -> dict[str, Any]:
    """The unsplit model."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for epoch in range(2):
        for x, y in batches(epoch):
            optimizer.zero_grad()
            loss = LOSS(module(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return {"losses": losses, "state": dict(module.state_dict())}


def nothing_first() -> str:
    """What is raised on this rank when the first stage has no inputs; a good step follows."""
    pipe, optimizer = pipeline(2)
    x, y = (t[:N] for t in batch(0))
    message = ""
    try:
        pipe.train_step(None, y, LOSS, optimizer)
    except ValueError as error:
        message = str(error)
    pipe.train_step(x, y, LOSS, optimizer)
    pipe.close()
    return message


def shown() -> str:
    """The text of the second stage of two, of the second replica."""
    pipe, _ = pipeline(2, D)
    pipe.close()
    return repr(pipe)


def everything() -> dict[Any, Any]:
    """All of it, on four processes."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for K in (1, 2, 3):
        if rank < K:
            found["loaded", K] = loaded(K)
    if rank < 2:
        found["nothing"] = nothing_first()
    found["shown"] = shown()
    return found


def unequal() -> None:
    """The last stage's targets are of another mini-batch than the first stage's inputs."""
    pipe, optimizer = pipeline(2)
    x, y = batch(0)
    pipe.train_step(
        x[:N] if pipe.is_first else None, y[: N - 1] if pipe.is_last else None, LOSS, optimizer
    )
