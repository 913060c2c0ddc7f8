"""Stages that share one device: what they train, save and load, and how they end."""

import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe import Pipeline

LAYERS = 9  # for up to eight stages


def layers() -> list[nn.Module]:
    """Batch norm, dropout and linear layers, initialised by their position."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.2))
        for _ in range(LAYERS - 1)
    ]
    return [*blocks, nn.Linear(32, 8)]


def start(K: int, device: str, checkpoint: str = "always") -> tuple[Pipeline, torch.optim.Adam]:
    """A pipeline of K stages on one device, with kernels that give the same bits every time."""
    if device == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(mode=True)
    pipe = Pipeline(layers(), K, 4, checkpoint=checkpoint, balance="uniform", device=device, seed=3)
    return pipe, torch.optim.Adam(pipe.parameters(), lr=0.01)


def steps(pipe: Pipeline, optimizer: torch.optim.Adam, first: int, last: int) -> float:
    """Steps with numbers from `first` to before `last`, on data of their own."""
    loss = 0.0
    for number in range(first, last):
        draw = torch.Generator().manual_seed(number)
        x = torch.randn(16, 32, generator=draw)
        y = torch.randint(8, (16,), generator=draw)
        loss = pipe.train_step(x, y, nn.functional.cross_entropy, optimizer).loss
    return loss


def trained(K: int, device: str, folder: Path, checkpoint: str = "always") -> None:
    """Four steps, then a checkpoint."""
    pipe, optimizer = start(K, device, checkpoint)
    steps(pipe, optimizer, 0, 4)
    pipe.save(folder, optimizer)
    pipe.close()


def resumed(K: int, device: str, half: Path, folder: Path) -> None:
    """Go on from a checkpoint after two steps, with another K."""
    pipe, optimizer = start(K, device)
    pipe.load(half, optimizer)
    steps(pipe, optimizer, 2, 4)
    pipe.save(folder, optimizer)
    pipe.close()


def halfway(K: int, device: str, folder: Path) -> None:
    """Two steps, then a checkpoint."""
    pipe, optimizer = start(K, device)
    steps(pipe, optimizer, 0, 2)
    pipe.save(folder, optimizer)
    pipe.close()


def too_large(K: int, device: str, limit: int) -> None:
    """A step in which the last stage's layer takes more than `limit` bytes."""
    wide = nn.Sequential(nn.Linear(32, 2**21), nn.ReLU(), nn.Linear(2**21, 8))
    pipe = Pipeline([*layers()[:-1], wide], K, 4, balance="uniform", device=device)
    x, y = torch.randn(16, 32), torch.randint(8, (16,))
    pipe.measure_memory(x, y, nn.functional.cross_entropy, limit=limit)


def killed(K: int, device: str, victim: int) -> None:
    """Stage `victim` dies after its first step."""
    pipe, optimizer = start(K, device)
    steps(pipe, optimizer, 0, 1)
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    steps(pipe, optimizer, 1, 50)
