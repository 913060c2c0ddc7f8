"""What the processes of `test_loops.py` run; at module level so that they can import it."""

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from repro.gpipe import NonFiniteError, Pipeline

N, M, D, WIDTH, EPOCHS, WINDOW = 7, 3, 2, 6, 6, 3
LOSS = nn.functional.mse_loss
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, 0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS),
    "warm-up": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, total_iters=3),
            lr_scheduler.ExponentialLR(optimizer, 0.5),
        ],
        [3],
    ),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(
        optimizer, patience=0, threshold=0.2
    ),
}


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


def part_of_window(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of one step of several."""
    return LOSS(outputs, targets) / WINDOW


def accumulated(stages: int, copies: int, refused: bool) -> dict[str, Tensor]:
    """Weights after two updates of three steps each.

    With `refused`, a step after the first one of a window is refused, and the window begins anew.
    """
    pipe, optimizer = pipeline(stages, copies)
    for window in range(2):
        done = 0
        bad = refused
        while done < WINDOW:
            x, y = (
                t[pipe.replica * N : (pipe.replica + 1) * N] for t in batch(WINDOW * window + done)
            )
            try:
                if done == 1 and bad:
                    bad = False
                    x = x * torch.inf
                pipe.train_step(x, y, part_of_window)
                done += 1
            except NonFiniteError:
                optimizer.zero_grad()
                done = 0
        optimizer.step()
        optimizer.zero_grad()
    pipe.close()
    return dict(pipe.module.state_dict())


def plain_accumulated(copies: int) -> dict[str, Tensor]:
    """The unsplit model."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for window in range(2):
        for step in range(WINDOW):
            x, y = (t[: copies * N] for t in batch(WINDOW * window + step))
            part_of_window(module(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(module.state_dict())


def scheduled(stages: int, name: str, epochs: int, folder: Path, resume: bool) -> dict[str, Any]:
    """Losses and learning rates of some epochs, from the first or from where a checkpoint ended."""
    pipe, optimizer = pipeline(stages)
    scheduler = SCHEDULERS[name](optimizer)
    first = 0
    if resume:
        extra = pipe.load(folder, optimizer)
        scheduler.load_state_dict(extra["scheduler"])
        first = extra["epoch"]
    losses, rates = [], []
    for epoch in range(first, first + epochs):
        rates.append(optimizer.param_groups[0]["lr"])
        x, y = (t[:N] for t in batch(epoch % 2))
        loss = pipe.train_step(x, y, LOSS, optimizer).loss
        scheduler.step(loss) if name == "plateau" else scheduler.step()
        losses.append(loss)
    pipe.save(
        folder, optimizer, extra={"scheduler": scheduler.state_dict(), "epoch": first + epochs}
    )
    pipe.close()
    return {"losses": losses, "rates": rates, "state": dict(pipe.module.state_dict())}


def plain_scheduled(name: str) -> dict[str, Any]:
    """The unsplit model."""
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    scheduler = SCHEDULERS[name](optimizer)
    losses, rates = [], []
    for epoch in range(EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        x, y = (t[:N] for t in batch(epoch % 2))
        optimizer.zero_grad()
        loss = LOSS(module(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step(loss.item()) if name == "plateau" else scheduler.step()
        losses.append(loss.item())
    return {"losses": losses, "rates": rates}


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


def everything(folder: Path) -> dict[Any, Any]:
    """All of it, on four processes."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for K, copies in ((1, 1), (2, 1), (3, 1), (2, D)):
        for refused in (False, True):
            if rank < K * copies:
                found["accumulated", K, copies, refused] = accumulated(K, copies, refused)
    for K in (1, 2, 3):
        if rank < K:
            found["loaded", K] = loaded(K)
    for name in SCHEDULERS:
        if rank < 2:
            found["whole", name] = scheduled(
                2, name, EPOCHS, folder / f"whole {name}", resume=False
            )
            found["half", name] = scheduled(2, name, EPOCHS // 2, folder / name, resume=False)
        if rank < 3:
            found["rest", name] = scheduled(
                3, name, EPOCHS - EPOCHS // 2, folder / name, resume=True
            )
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
