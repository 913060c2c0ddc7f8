"""What the processes of `test_interleaved.py` run: ranks that hold several stages."""

from functools import partial
from pathlib import Path
from typing import Any

import explosions
import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline, StepResult
from repro.gpipe.runtime.status import status

ORDER = "interleaved-1f1b"
WIDTH, N, M = 6, 11, 3  # M is no multiple of K = 2, and N none of M
MSE = nn.functional.mse_loss
BAD = [("forward", 2), ("backward", 1), ("loss", 0), ("inputs", 0), ("summed", 1)]


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def layers() -> list[Any]:
    """Six, of which five have parameters, with batch norm and dropout."""
    norm = partial(nn.BatchNorm1d, WIDTH)
    return [linear, norm, linear, partial(nn.Dropout, 0.2), linear, linear]


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(N, WIDTH, generator=generator) for _ in range(2))
    return x, 3 * y


def pipeline(K: int, held: int = 1, checkpoint: str = "always", **options: Any) -> Pipeline:
    """The same order of backwards with one stage a rank and with several."""
    return Pipeline(
        layers(),
        K,
        M,
        schedule=ORDER if held > 1 else "1f1b",
        stages_per_rank=held,
        checkpoint=checkpoint,
        balance="uniform",
        device="cpu",
        **options,
    )


def momentum(pipe: Pipeline) -> torch.optim.Optimizer:
    return torch.optim.SGD(pipe.parameters(), lr=0.05, momentum=0.9)


def snapshot(pipe: Pipeline) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in pipe.module.state_dict().items()}


def steps(pipe: Pipeline, optimizer: torch.optim.Optimizer, first: int, end: int) -> list[float]:
    return [pipe.train_step(*batch(n), MSE, optimizer).loss for n in range(first, end)]


def clipped(K: int, held: int) -> list[float]:
    """Norms over all stages, which are summed in layer order."""
    pipe = pipeline(K, held)
    pipe.train_step(*batch(), MSE)
    norms = [pipe.clip_grad_norm_(0.5).item(), pipe.clip_grad_norm_(0.1, 1.0).item()]
    pipe.close()
    return norms


def scaled(K: int, held: int) -> dict[str, Tensor]:
    """Weights after steps whose loss is scaled."""
    pipe = pipeline(K, held)
    optimizer, scaler = momentum(pipe), pipe.grad_scaler(init_scale=8.0)
    for n in range(2):
        pipe.train_step(*batch(n), MSE, optimizer, scaler=scaler)
    pipe.close()
    return snapshot(pipe)


def started(folder: Path, K: int, held: int) -> None:
    """Train two steps and save."""
    pipe = pipeline(K, held)
    optimizer = momentum(pipe)
    steps(pipe, optimizer, 0, 2)
    pipe.save(folder, optimizer, {"steps": 2})
    pipe.close()


def resumed(folder: Path, K: int, held: int) -> tuple[list[float], dict[str, Tensor]]:
    """Load, and train two more."""
    pipe = pipeline(K, held, seed=5)
    pipe.held.seed = 0  # other initial weights, the same dropout
    optimizer = momentum(pipe)
    assert pipe.load(folder, optimizer) == {"steps": 2}
    losses = steps(pipe, optimizer, 2, 4)
    pipe.close()
    return losses, snapshot(pipe)


def thawed(K: int, held: int) -> dict[str, Tensor]:
    """The first layers are frozen meanwhile, so that no gradient comes back to the first stage."""
    pipe = pipeline(K, held)
    optimizer = momentum(pipe)
    for n in range(4):
        for name, parameter in pipe.module.named_parameters():
            parameter.requires_grad_(name[0] not in "012" or n in (0, 3))
        steps(pipe, optimizer, n, n + 1)
    pipe.close()
    return snapshot(pipe)


def traced() -> StepResult:
    """The second step, with its timeline."""
    pipe = pipeline(2, 2)
    optimizer = momentum(pipe)
    steps(pipe, optimizer, 0, 1)
    result = pipe.train_step(*batch(), MSE, optimizer, trace=True)
    pipe.close()
    return result


def memory() -> tuple[list[int], int]:
    """Peak bytes of each rank, and those of this rank's parameters."""
    pipe = pipeline(2, 2)
    optimizer = momentum(pipe)
    steps(pipe, optimizer, 0, 1)
    peaks = pipe.measure_memory(*batch(), MSE, optimizer)
    pipe.close()
    return peaks, sum(parameter.nbytes for parameter in pipe.parameters())


def alone(folder: Path) -> dict[str, Any]:
    """The same on one rank, with one stage or several."""
    pipe = pipeline(1)
    losses = steps(pipe, momentum(pipe), 0, 4)
    return {
        "clipped": [clipped(1, held) for held in (1, 3)],
        "scaled": scaled(1, 1),
        "thawed": [thawed(1, held) for held in (1, 2)],
        "losses": losses,
        "state": snapshot(pipe),
        "resumed": [resumed(folder / "two", 1, held) for held in (1, 2)],
    }


def everything(folder: Path) -> dict[Any, Any]:
    """All of these on the first K ranks; the references on the first."""
    rank = dist.get_rank()
    done: dict[Any, Any] = {}
    if rank < 2:
        done["clipped"], done["scaled"] = clipped(2, 2), scaled(2, 2)
        done["thawed"] = thawed(2, 2)
        started(folder / "two", 2, 2)
        if rank == 0:
            started(folder / "one", 1, 1)
            done["alone"] = alone(folder)
        done["resumed"] = resumed(folder / "one", 2, 3)
        done["traced"], done["memory"] = traced(), memory()
        done["refused"] = explosions.refused(2, ORDER, "always", BAD, stages_per_rank=2)
    return done


class Broken(nn.Module):
    """Fails in the second step."""

    def forward(self, x: Tensor) -> Tensor:
        if status.step == 1:
            raise RuntimeError("layer is broken")
        return x


def fail() -> None:
    """The second stage of the first rank fails in the second step."""
    made = [linear, linear, Broken, linear]
    pipe = Pipeline(made, 2, M, schedule=ORDER, stages_per_rank=2, balance="uniform", device="cpu")
    steps(pipe, torch.optim.SGD(pipe.parameters(), lr=0.1), 0, 4)
