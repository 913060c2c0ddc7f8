"""What the processes of `test_scaler.py` run; at module level so that they can import it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.core.microbatch import sizes
from repro.gpipe.exact.nonfinite import all_finite

N, M, D, STEPS, WIDTH = 7, 3, 2, 8, 6
LOSS = nn.functional.mse_loss
OPTIONS: dict[str, Any] = {"init_scale": 2.0**17, "growth_interval": 2}
LOOPS = ("all in train_step", "clipped", "two steps an update")
FACTOR = 2.0**7


class _Amplified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * FACTOR


class Amplifies(nn.Module):
    """Overflows float16 in the gradients of all layers before it, or of its own bias alone."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            return _Amplified.apply(x + self.bias)
        return x + _Amplified.apply(self.bias.half())


def model(before: bool) -> nn.Sequential:
    """Five layers; the last one has no parameters."""
    torch.manual_seed(2)
    linear = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    with torch.no_grad():
        for layer in linear:
            layer.weight /= 4
    first, second = (Amplifies(True), nn.Tanh()) if before else (nn.Tanh(), Amplifies(False))
    return nn.Sequential(linear[0], first, linear[1], second, nn.Identity())


CUTS = {1: [5], 2: [2, 3], 3: [2, 2, 1]}


def batch(step: int) -> tuple[Tensor, Tensor]:
    """The mini-batch of all replicas."""
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(D * N, WIDTH, generator=generator) for _ in range(2))
    return x, y


def optimizer_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer | None:
    """None where there is nothing to train."""
    return torch.optim.SGD(parameters, lr=0.001, momentum=0.9) if parameters else None


def plain(before: bool, loop: str, copies: int) -> dict[str, Any]:
    """The unsplit model with torch's own scaler."""
    module = model(before)
    optimizer = optimizer_of(list(module.parameters()))
    assert optimizer is not None
    scaler = torch.amp.GradScaler("cpu", **OPTIONS)
    scales, losses = [], []
    for step in range(STEPS):
        accumulates = loop == LOOPS[2] and step % 2 == 0
        if loop != LOOPS[2] or accumulates:
            optimizer.zero_grad()
        total = 0.0
        for replica in range(copies):
            own = [t[replica * N : (replica + 1) * N].split(sizes(N, M)) for t in batch(step)]
            for x, y in reversed(list(zip(*own, strict=True))):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = LOSS(module(x.clone()), y) * (len(x) / (copies * N))
                total += loss.item()
                scaler.scale(loss).backward()
        losses.append(total)
        if not accumulates:
            if loop == LOOPS[1]:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
        scales.append(scaler.get_scale())
    return {"scales": scales, "losses": losses, "state": dict(module.state_dict())}


def scaled(stages: int, copies: int, before: bool, loop: str) -> dict[str, Any]:
    """The same through a pipeline; and whether this stage's gradients overflowed in each step."""
    pipe = Pipeline(model(before), stages, M, replicas=copies, balance=CUTS[stages], device="cpu")
    optimizer = optimizer_of(list(pipe.parameters()))
    scaler = pipe.grad_scaler(**OPTIONS)
    scales, losses, overflowed = [], [], []
    for step in range(STEPS):
        x, y = (t[pipe.replica * N : (pipe.replica + 1) * N] for t in batch(step))
        here = loop == LOOPS[0]
        with torch.autocast("cpu", dtype=torch.float16):
            result = pipe.train_step(x, y, LOSS, optimizer if here else None, scaler=scaler)
        losses.append(result.loss)
        overflowed.append(not all_finite(p.grad for p in pipe.parameters() if p.grad is not None))
        if not here and not (loop == LOOPS[2] and step % 2 == 0):
            if loop == LOOPS[1]:
                if optimizer is not None:
                    scaler.unscale_(optimizer)
                pipe.clip_grad_norm_(0.1)
            if optimizer is not None:
                scaler.step(optimizer)
            scaler.update()
            if optimizer is not None:
                optimizer.zero_grad()
        scales.append(scaler.get_scale())
    pipe.close()
    state = dict(pipe.module.state_dict())
    return {"scales": scales, "losses": losses, "state": state, "overflowed": overflowed}


def forgotten() -> str:
    """What is raised on this rank when rank 1 forgets to update its scaler."""
    pipe = Pipeline(model(True), 2, M, balance=CUTS[2], device="cpu")
    scaler = pipe.grad_scaler(**OPTIONS)
    try:
        for step in range(2):
            x, y = (t[:N] for t in batch(step))
            with torch.autocast("cpu", dtype=torch.float16):
                pipe.train_step(x, y, LOSS, scaler=scaler)
            if pipe.rank == 0:
                scaler.update()
    except ValueError as error:
        return str(error)
    finally:
        pipe.close()
    return ""


def everything() -> dict[Any, Any]:
    """K = 1, 2, 3, and two replicas of K = 2, on four processes."""
    rank = dist.get_rank()
    cases = [(K, copies) for K, copies in ((1, 1), (2, 1), (3, 1), (2, D)) if rank < K * copies]
    found: dict[Any, Any] = {
        (K, copies, before, loop): scaled(K, copies, before, loop)
        for K, copies in cases
        for before in (True, False)
        for loop in LOOPS
    }
    if rank < 2:
        found["forgotten"] = forgotten()
    if rank == 0:
        for copies in (1, D):
            for before in (True, False):
                found |= {(copies, before, loop): plain(before, loop, copies) for loop in LOOPS}
    return found
