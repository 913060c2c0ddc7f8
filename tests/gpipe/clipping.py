"""What the processes of `test_clip.py` run; at module level so that they can import it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline

N, M, D, STEPS, WIDTH = 7, 3, 2, 3, 6
NORM_TYPES = (2.0, 1.0, float("inf"))
MAX_NORM = {2.0: 0.1, 1.0: 0.8, float("inf"): 0.03}  # well below the norms that occur
CUTS = {1: [6], 2: [3, 3], 3: [2, 3, 1]}
LOSS = nn.functional.mse_loss


class Embedded(nn.Module):
    """Rows of a table, whose gradient is sparse, through a layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.table = nn.Embedding(5, WIDTH, sparse=True)
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.table((x[:, 0].abs() * 10).long() % 5) + x)


class InDouble(nn.Module):
    """A layer with weights of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.double()).float()


def model(sparse: bool) -> nn.Sequential:
    """Six layers: the first two share a weight, one has no parameters.

    Where a gradient is sparse another layer is frozen; replicas take neither.
    """
    torch.manual_seed(2)
    shared, tied, frozen = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    first = Embedded(shared) if sparse else shared
    tied.weight = shared.weight
    frozen.requires_grad_(not sparse)
    return nn.Sequential(first, tied, InDouble(), frozen, nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The mini-batch of all replicas: D N examples."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(D * N, WIDTH, generator=generator) for _ in range(2))
    return x, 3 * y


def plain(norm_type: float, copies: int) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The unsplit model: the norm of each step, and the weights after the last one."""
    module = model(sparse=copies == 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    norms = []
    for step in range(STEPS):
        x, y = (t[: copies * N] for t in batch(step))
        optimizer.zero_grad()
        LOSS(module(x), y).backward()
        limit = MAX_NORM[norm_type]
        norms.append(torch.nn.utils.clip_grad_norm_(module.parameters(), limit, norm_type))
        optimizer.step()
    return norms, dict(module.state_dict())


def clipped(stages: int, copies: int, norm_type: float) -> dict[str, Any]:
    """The same through a pipeline."""
    layers = model(sparse=copies == 1)
    pipe = Pipeline(layers, stages, M, replicas=copies, balance=CUTS[stages], device="cpu")
    optimizer = torch.optim.SGD([{"params": list(pipe.parameters())}], lr=0.5)
    norms = []
    for step in range(STEPS):
        own = slice(pipe.replica * N, (pipe.replica + 1) * N)
        x, y = (t[own] for t in batch(step))
        optimizer.zero_grad()
        pipe.train_step(x, y, LOSS)
        norms.append(pipe.clip_grad_norm_(MAX_NORM[norm_type], norm_type))
        optimizer.step()
    after = pipe.clip_grad_norm_(float("inf"), norm_type)
    pipe.close()
    return {"norms": norms, "after": after, "state": dict(pipe.module.state_dict())}


def refused(stages: int) -> list[str]:
    """Errors for different limits, for a wrong one on the other rank, and after an update."""
    pipe = Pipeline(model(sparse=False), stages, M, balance=CUTS[stages], device="cpu")
    optimizer = torch.optim.SGD([{"params": list(pipe.parameters())}], lr=0.5)
    x, y = batch(0)
    found = []
    pipe.train_step(x, y, LOSS)
    for limit in (1.0 + pipe.rank, -1.0 if pipe.rank else 1.0, 1.0):
        try:
            pipe.clip_grad_norm_(limit)
        except ValueError as error:
            found.append(str(error))
    optimizer.zero_grad()
    pipe.train_step(x, y, LOSS, optimizer)
    try:
        pipe.clip_grad_norm_(1.0)
    except ValueError as error:
        found.append(str(error))
    pipe.close()
    return found


def everything() -> dict[Any, Any]:
    """K = 1, 2, 3, and two replicas of K = 1, 2, on four processes."""
    rank = dist.get_rank()
    cases = [
        (K, copies) for K, copies in ((1, 1), (2, 1), (3, 1), (1, D), (2, D)) if rank < K * copies
    ]
    found: dict[Any, Any] = {(*c, t): clipped(*c, t) for c in cases for t in NORM_TYPES}
    if rank < 2:
        found["refused"] = refused(2)
    return found
