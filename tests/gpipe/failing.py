"""Trainings in which a stage goes wrong, or ranks make different calls; `when` gets the time.

A program of four ranks, or of those that torchrun has started.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.runtime.status import status

STAGES = 4
DATA = torch.ones(8, 4), torch.ones(8, 4), nn.functional.mse_loss


def pipeline(stages: int = 2) -> Pipeline:
    layers = [nn.Linear(4, 4) for _ in range(stages)]
    return Pipeline(layers, stages, 2, device="cpu", without=["NonFinite"])


def goes_wrong_now(when: str) -> None:
    Path(when).write_text(str(time.time()))


def _raise() -> None:
    raise RuntimeError("layer is broken" + 10000 * " here")


WRONG = {
    "raise": _raise,
    "oom": lambda: torch.empty(10**15),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class Goes(nn.Module):
    """Goes wrong in the second step's second micro-batch, in its F, R, B or I."""

    def __init__(self, how: str, kind: str, when: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.how, self.kind, self.when = how, kind, when

    def forward(self, x: Tensor) -> Tensor:
        self.go()
        x = x * self.weight
        if x.requires_grad:
            x.register_hook(lambda _: self.go())
        return x

    def go(self) -> None:
        if status.step == 1 and status.action and status.action.label == f"{self.kind}1":
            goes_wrong_now(self.when)
            WRONG[self.how]()


def train(how: str, kind: str, stage: int, when: str) -> None:
    """Three steps, of which the second goes wrong."""
    layers: list = [nn.Linear(4, 4) for _ in range(STAGES)]
    layers[stage] = Goes(how, kind, when)
    schedule = "zb" if kind == "I" else "gpipe"
    pipe = Pipeline(layers, STAGES, 4, device="cpu", balance="uniform", schedule=schedule)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.01)
    for _ in range(3):
        pipe.train_step(*DATA, optimizer)
        time.sleep(1.2)  # for a sign of life
    raise AssertionError("nothing went wrong")


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """On the last stage it calls a collective, to which the first stage cannot come."""
    value = nn.functional.mse_loss(outputs, targets)
    dist.all_reduce(value.detach().clone())
    return value


def call(when: str, *of_ranks: str) -> None:
    """Each rank makes its calls, such as `train save`; one without any makes no Pipeline."""
    calls: dict[str, Callable[[Pipeline], object]] = {
        "nothing": lambda _: None,
        "train": lambda pipe: pipe.train_step(*DATA),
        "evaluate": lambda pipe: pipe.evaluate(*DATA),
        "save": lambda pipe: pipe.save(Path(when).with_name("checkpoint")),
        "collective": lambda pipe: pipe.train_step(*DATA[:2], loss),
        "rest": lambda _: time.sleep(1.2),  # for a sign of life
        "stop": lambda _: WRONG["stop"](),  # nobody is left to notice but the launcher
    }
    names = of_ranks[dist.get_rank()].split()
    pipe: Any = pipeline(len(of_ranks)) if names else None
    time.sleep(1.2)  # for a sign of life, and for the slowest rank
    goes_wrong_now(when)
    for name in names:
        goes_wrong_now(when)
        calls[name](pipe)


def resumed(how: str, folder: str) -> None:
    """Four steps, each with a checkpoint; before the first restart the last stage goes wrong."""
    pipe = pipeline()
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.01)
    done = 0
    if Path(folder, "index.pt").exists():
        done = pipe.load(folder, optimizer)["steps"]
    for step in range(done, 4):
        if step == 2 and not done and pipe.is_last:
            WRONG[how]()
        pipe.train_step(*DATA, optimizer)
        pipe.save(folder, optimizer, {"steps": step + 1})


def endless(when: str) -> None:
    """Steps until somebody ends them; says when they go well."""
    pipe = pipeline(STAGES)
    for step in range(100000):
        pipe.train_step(*DATA)
        if step == 20 and pipe.is_first:
            goes_wrong_now(when)
        time.sleep(0.02)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    stages = int(os.environ.get("WORLD_SIZE", STAGES))
    launch(globals()[name], *[int(a) if a.isdigit() else a for a in arguments], stages=stages)
