"""What the tests of checkpoints share: stages in threads, small models, spawned functions."""

import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples import batch, noisy
from torch import nn
from torch.optim import Optimizer

from repro.gpipe import Pipeline
from repro.gpipe.checkpoint.save_load import Holder, load, save
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core.layers import names as keys

CUTS = {1: [6], 2: [3, 3], 3: [1, 1, 4]}  # for K = 3 the second stage has no parameters
OPTIMIZERS = {"SGD": {"lr": 0.3, "momentum": 0.9}, "Adam": {"lr": 0.1, "amsgrad": True}}


def optimizer_of(module: nn.Module, kind: str) -> Optimizer | None:
    """One that treats matrices and vectors differently."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": p, "weight_decay": w} for p, w in ((vectors, 0.0), (matrices, 0.1)) if p]
    return getattr(torch.optim, kind)(groups, **OPTIMIZERS[kind]) if groups else None


def train(kind: str, stages: int, steps: range, before: Path | None, after: Path) -> None:
    """Load `before`, train, with half the learning rate from step 2 on, and save `after`."""
    pipe = Pipeline(noisy(), stages, 4, balance=CUTS[stages], device="cpu", seed=0 if before else 7)
    pipe.engine.runner.seed = 7  # other initial weights, the same dropout
    optimizer = optimizer_of(pipe.module, kind)
    if before:
        assert pipe.load(before, optimizer) == {"epoch": steps.start}
    for step in steps:
        pipe.train_step(*batch(), nn.functional.mse_loss, optimizer)
        for group in optimizer.param_groups if optimizer and step == 1 else ():
            group["lr"] /= 2
    pipe.save(after, optimizer, {"epoch": steps.stop})
    pipe.close()


def interrupted(folder: Path) -> None:
    """Five steps of K=1; two of K=2 and three more of K=1 and K=3: all in one launch."""
    for kind in ("SGD", "Adam"):
        own = folder / kind
        for stages, steps, before, after in (
            (1, range(5), None, "straight"),
            (2, range(2), None, "half"),
            (1, range(2, 5), own / "half", "1"),
            (3, range(2, 5), own / "half", "3"),
        ):
            if dist.get_rank() < stages:
                train(kind, stages, steps, before, own / after)
            dist.barrier()


class Meeting(ControlChannel):
    """The channel of a stage in a thread, whose gathering is a meeting."""

    def __init__(self, stages: "Stages", rank: int) -> None:
        super().__init__(len(stages.values), rank)
        self.stages = stages

    def all_gather(self, value):
        values, barrier = self.stages.values, self.stages.barrier
        values[self.rank] = value
        barrier.wait(20)
        found = list(values)
        barrier.wait(20)
        return found


class Stages:
    """K stages in threads."""

    def __init__(self, count: int) -> None:
        self.values: list[Any] = [None] * count
        self.barrier = threading.Barrier(count)

    def all(self, call):
        """What each stage's call, given its channel, returned or raised."""

        def one(rank):
            try:
                return call(Meeting(self, rank))
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(self.values)) as pool:
            return list(pool.map(one, range(len(self.values))))


def named(layers):
    """A stage whose layers have these names."""
    return nn.Sequential(OrderedDict(layers))


def model(*widths, first=0, seed=1):
    """A stage of linear layers."""
    torch.manual_seed(seed)
    return named({str(first + n): nn.Linear(a, b) for n, (a, b) in enumerate(pairwise(widths))})


def stepped(module, kind="Adam", **options):
    """An optimizer that has made one step."""
    optimizer = getattr(torch.optim, kind)(module.parameters(), **({"lr": 0.1} | options))
    for p in module.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


def holder(module, all_ranks=None, layers=None):
    """A stage; by default the only one, whose layers are the whole model's."""
    channel = all_ranks or ControlChannel(1, 0)
    return Holder(channel, channel.ranks, module, layers or keys(module))


def put(folder, module, optimizer=None, extra=None, *, step=1, of=None, **more):
    save(of or holder(module), folder, optimizer, extra, step=step, **more)


def get(folder, module, optimizer=None, *, of=None):
    return load(of or holder(module), folder, optimizer)
