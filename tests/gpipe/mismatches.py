"""Programs whose ranks make different calls of their Pipeline, and record when they diverge."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from repro.gpipe import Pipeline, launch

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


if __name__ == "__main__":
    launch(part, *sys.argv[1:], stages=2)
