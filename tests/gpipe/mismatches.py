"""Programs whose ranks make different calls of their Pipeline, and record when they diverge."""

import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.runtime import heartbeats

DATA = torch.ones(8, 4), torch.ones(8, 4), nn.functional.mse_loss


def part(what: str, stages: int, when: str) -> None:
    """What each rank does in the case `what`; the file `when` gets the time of the divergence."""
    rank, last = dist.get_rank(), dist.get_rank() == stages - 1
    if what == "the last rank builds no Pipeline" and last:
        Path(when).write_text(str(time.time()))
        return
    pipe = build(stages)
    time.sleep(1.2)  # for a sign of life, and for the slowest rank
    Path(when).write_text(str(time.time()))
    calls: dict[str, Callable[[], object]] = {
        "train": lambda: pipe.train_step(*DATA),
        "evaluate": lambda: pipe.evaluate(*DATA),
        "save": lambda: pipe.save(Path(when).with_name("checkpoint")),
        "build": lambda: build(stages),
        "nothing": lambda: None,
    }
    first, others, end = CASES[what]
    calls[first if rank == 0 else end if last else others]()


class Slow(nn.Linear):
    """Computes for long in each forward, once it is told to."""

    seconds = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            pass
        return super().forward(x)


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def elsewhere() -> tuple[list[str], list[str]]:
    """Warnings of each rank while the last one is outside of its Pipeline, or computes."""
    heartbeats._OUTSIDE = 1.0
    heard = Heard()
    logging.getLogger(heartbeats.__name__).addHandler(heard)
    slow = Slow(4, 4)
    pipe = Pipeline([nn.Linear(4, 4), slow], 2, 2, device="cpu", balance=[1, 1], checkpoint="never")
    pipe.train_step(*DATA)
    slow.seconds = 2.0
    pipe.train_step(*DATA)
    slow.seconds = 0.0
    busy = [*heard.messages]
    heard.messages.clear()
    if dist.get_rank() == 1:
        time.sleep(5.0)
    pipe.train_step(*DATA)
    return [*heard.messages], busy


def replicas(what: str, when: str) -> None:
    """Two copies of a pipeline of one stage, of which the second one does not train."""
    pipe = Pipeline(
        [nn.Linear(4, 4)], 1, 2, replicas=2, device="cpu", allow_nonfinite=what == "unchecked"
    )
    time.sleep(1.2)
    Path(when).write_text(str(time.time()))
    if dist.get_rank() == 0:
        pipe.train_step(*DATA)


def build(stages: int) -> Pipeline:
    """A pipeline without anything to disagree about."""
    return Pipeline(
        [nn.Linear(4, 4) for _ in range(stages)], stages, 2, device="cpu", allow_nonfinite=True
    )


# What the first rank calls, those in the middle, and the last one.
CASES = {
    "the last rank builds no Pipeline": ("nothing", "nothing", "nothing"),
    "the first rank alone trains": ("train", "nothing", "nothing"),
    "the last rank evaluates": ("train", "train", "evaluate"),
    "the last rank builds another Pipeline": ("train", "train", "build"),
    "the last rank saves while others train": ("train", "train", "save"),
}


if __name__ == "__main__":
    launch(part, sys.argv[1], int(sys.argv[2]), sys.argv[3], stages=int(sys.argv[2]))
