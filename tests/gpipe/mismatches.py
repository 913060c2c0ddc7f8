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


def build() -> Pipeline:
    layers = [nn.Linear(4, 4) for _ in range(2)]
    return Pipeline(layers, 2, 2, device="cpu", allow_nonfinite=True)


def part(when: str, *calls: str) -> None:
    """What each of two ranks does; the file `when` gets the time of the divergence."""
    call = calls[dist.get_rank()]
    pipe = build() if call != "no Pipeline" else None
    time.sleep(1.2)  # for a sign of life, and for the slowest rank
    Path(when).write_text(str(time.time()))
    if pipe is not None:
        steps: dict[str, Callable[[], object]] = {
            "train": lambda: pipe.train_step(*DATA),
            "evaluate": lambda: pipe.evaluate(*DATA),
            "nothing": lambda: None,
        }
        steps[call]()


class Slow(nn.Linear):
    """Computes for long in each forward, once it is told to."""

    seconds = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            pass
        return super().forward(x)


def elsewhere() -> tuple[list[str], list[str]]:
    """Warnings of each rank while the last one is outside of its Pipeline, or computes."""
    heartbeats._OUTSIDE = 1.0
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    logging.getLogger(heartbeats.__name__).addHandler(handler)
    slow = Slow(4, 4)
    pipe = Pipeline([nn.Linear(4, 4), slow], 2, 2, device="cpu", balance=[1, 1], checkpoint="never")
    pipe.train_step(*DATA)
    slow.seconds = 2.0
    pipe.train_step(*DATA)
    slow.seconds = 0.0
    busy = [*heard]
    if dist.get_rank() == 1:
        time.sleep(5.0)
    pipe.train_step(*DATA)
    return heard[len(busy) :], busy


if __name__ == "__main__":
    launch(part, *sys.argv[1:], stages=2)
