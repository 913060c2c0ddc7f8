"""What the processes of `test_autocast.py` run; at module level so that they can import it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.core.microbatch import sizes

N, M, STEPS, WIDTH = 7, 3, 4, 8
CHECKPOINTS = ("always", "except_last", "never")
LOOPS = ("a region for each step", "one region", "without in the second step")
LOSS = nn.functional.mse_loss


class Island(nn.Module):
    """A product in float32, whose gradient must be computed in float32 too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.float() @ self.weight


class Twice(nn.Module):
    """A weight that is used twice: autocast casts it once and adds two bfloat16 gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(x).tanh())


class Sharpened(torch.optim.SGD):
    """An optimizer that multiplies matrices, in whatever number format the multiplication runs."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad + 0.01 * (p.grad @ p.grad.T @ p.grad) if p.ndim == 2 else p.grad
        super().step(closure)


def model() -> nn.Sequential:
    """Six layers; whichever way they are cut, bfloat16 crosses a boundary."""
    torch.manual_seed(2)
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    return nn.Sequential(linear[0], Twice(), Island(), nn.LayerNorm(WIDTH), linear[1], Twice())


def batch() -> tuple[Tensor, Tensor]:
    """One mini-batch of N examples."""
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(N, WIDTH, generator=generator) for _ in range(2))
    return x, y


def regions(loop: str, step: int) -> AbstractContextManager[Any]:
    """What the caller enters around a step."""
    without = loop == LOOPS[1] or (loop == LOOPS[2] and step == 1)
    return nullcontext() if without else torch.autocast("cpu", dtype=torch.bfloat16)


def plain(loop: str) -> dict[str, Tensor]:
    """The unsplit model: a region around each forward, everything else outside."""
    module = model()
    optimizer = Sharpened(module.parameters(), lr=0.3)
    for step in range(STEPS):
        optimizer.zero_grad()
        parts = list(zip(*(t.split(sizes(N, M)) for t in batch()), strict=True))
        for x, y in reversed(parts):
            enabled = loop == LOOPS[1] or not isinstance(regions(loop, step), nullcontext)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                loss = LOSS(module(x.clone()), y) * (len(x) / N)
            loss.backward()
        optimizer.step()
    return dict(module.state_dict())


def cast(stages: int, checkpoint: str, loop: str) -> dict[str, Any]:
    """The same through a pipeline; also whether the caller's region was left alone."""
    pipe = Pipeline(model(), stages, M, balance="uniform", checkpoint=checkpoint, device="cpu")
    optimizer = Sharpened(pipe.parameters(), lr=0.3)
    around = torch.autocast("cpu", dtype=torch.bfloat16) if loop == LOOPS[1] else nullcontext()
    kept, crossed = True, set[torch.dtype]()
    pipe.module[0].register_forward_pre_hook(
        lambda _module, arguments: crossed.add(arguments[0].dtype)
    )
    with around:
        for step in range(STEPS):
            with regions(loop, step):
                before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
                pipe.evaluate(*batch(), LOSS)
                pipe.train_step(*batch(), LOSS, optimizer)
                kept &= before == (
                    torch.is_autocast_enabled("cpu"),
                    torch.get_autocast_dtype("cpu"),
                )
    pipe.close()
    return {"state": dict(pipe.module.state_dict()), "kept": kept, "crossed": crossed}


def everything() -> dict[Any, Any]:
    """All cases for each K on the first K ranks, and the unsplit model on the first one."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {
        (K, checkpoint, loop): cast(K, checkpoint, loop)
        for K in (1, 2, 3)
        for checkpoint in CHECKPOINTS
        for loop in LOOPS
        if rank < K
    }
    if rank == 0:
        found |= {loop: plain(loop) for loop in LOOPS}
    return found
