"""How fast `repro.train.trainer.Trainer` trains: against a plain PyTorch loop, and K=2 against K=1.

    nice .venv/bin/python tests/train/speed.py        # three minutes on two idle cores

Everything is measured on the CPU, with one thread in each process, and includes the reading of the
data. The two sides of a ratio are measured as the runs of an experiment are: step against step in
random order, in several sets of fresh processes. As a script it writes what came out to
results/reference/<machine>/training_speed.json.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from repro.data.batches import Batches
from repro.data.classification import ImageTask, open_images
from repro.data.pairs import TranslationTask, open_pairs
from repro.gpipe import Pipeline, launch
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import gather, map_leaves, split
from repro.harness import machine
from repro.harness.statistics import ratio
from repro.io.files import write
from repro.models import build
from repro.train.losses import classification, translation
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer, make_optimizer

REFERENCE = Path(__file__).parents[2] / "results/reference"
GOALS = {"Trainer over a plain loop, K=1": 0.97, "K=2 over K=1, M=8": 1.6}
SIDES = dict(zip(GOALS, (("plain", "trainer"), ("K=1", "K=2")), strict=True))
RECIPE = Recipe(lr=1e-3, optimizer="adam")
N, M = 64, 8
SETS, BLOCKS, WARM_UP = 3, 30, 3  # steps of each side in a set, and steps that are not timed

Loop = Callable[[int], object]  # does so many steps


@dataclass(frozen=True)
class Task:
    """A model with its data; `per_example` are the images or target tokens of an example."""

    name: str
    arguments: dict[str, Any]
    data: Callable[[], Batches]
    loss: Loss
    unit: str
    per_example: int


PAIRS = TranslationTask(names=("toy:alfa",), vocabulary=256, S=24, T=24)
TASKS = {
    "images": Task(
        "amoebanet-b",
        {"L": 3, "D": 16, "image": 32, "num_classes": 10},
        lambda: open_images(ImageTask(size=32), N, seed=0),
        classification(),
        "images/s",
        1,
    ),
    "tokens": Task(
        "translation",
        {"L": 3, "d": 64, "H": 128, "A": 4, "head_dim": 16, "V": 256, "S": 24, "T": 24},
        lambda: open_pairs(PAIRS, N, seed=0),
        translation(),
        "tokens/s",
        24,
    ),
}


def plain_loop(task: Task) -> Loop:
    """A usual training loop on tensors in memory."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer() for layer in build(task.name, **task.arguments).layers))
    optimizer = make_optimizer(model, RECIPE)
    batches = task.data()
    everything = gather([batches.next() for _ in range(20)])
    shuffled = (rows for _ in count() for rows in torch.randperm(20 * N).split(N))

    def run(steps: int) -> None:
        for rows in islice(shuffled, steps):
            inputs, targets = map_leaves(torch.Tensor, lambda x, rows=rows: x[rows], everything)
            optimizer.zero_grad()
            loss = task.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            loss.item()

    return run


def trainer_loop(task: Task, K: int, M: int, checkpoint: str) -> Loop:
    """The same by `Trainer` on K stages, which are cut by measured times."""
    torch.manual_seed(0)
    batches = task.data()
    inputs, _ = batches.next()
    layers, sample = build(task.name, **task.arguments).layers, split(inputs, M)[0]
    cut: Any = {"balance": "time", "sample": sample, "device": "cpu"}
    pipe = Pipeline(layers, K, M, checkpoint=checkpoint, **cut)
    trainer = Trainer(pipe, task.loss, RECIPE, batches)
    return lambda steps: trainer.run(trainer.step + steps)


def loops_here() -> dict[str, dict[tuple[str, str], Loop]]:
    """Comparison -> side and task -> its loop, where this process of two takes part in it."""
    against_plain, on_two = GOALS
    loops: dict[str, dict[tuple[str, str], Loop]] = {each: {} for each in GOALS}
    for name, task in TASKS.items():
        loops[on_two]["K=2", name] = trainer_loop(task, 2, M, "always")
        if dist.get_rank() == 0:
            loops[on_two]["K=1", name] = trainer_loop(task, 1, M, "always")
            loops[against_plain]["plain", name] = plain_loop(task)
            loops[against_plain]["trainer", name] = trainer_loop(task, 1, 1, "never")
    return loops


def rates_of_set(number: int) -> dict[tuple[str, str, str], list[float]]:
    """Comparison, side, task -> its throughput in each block of a set."""
    torch.set_num_threads(1)
    loops, orders = loops_here(), random.Random(number)
    for loop in (loop for each in loops.values() for loop in each.values()):
        loop(WARM_UP)
    pairs = [(comparison, name) for comparison in GOALS for name in TASKS]
    rates: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(BLOCKS):
        for comparison, name in orders.sample(pairs, len(pairs)):
            for side in orders.sample(SIDES[comparison], 2):
                dist.barrier()
                if loop := loops[comparison].get((side, name)):
                    began = time.perf_counter()
                    loop(1)
                    rate = N * TASKS[name].per_example / (time.perf_counter() - began)
                    rates.setdefault((comparison, side, name), []).append(rate)
    return rates


def main() -> None:
    """Measure, print, and write the record."""
    torch.set_num_threads(1)
    here = machine.detect("laptop")
    sets = [launch(rates_of_set, number, stages=2)[0] for number in range(SETS)]
    comparisons = []
    for comparison, name in ((comparison, name) for comparison in GOALS for name in TASKS):
        base, other = (
            dict[Hashable, Any](enumerate(each[comparison, side, name] for each in sets))
            for side in SIDES[comparison]
        )
        value, low, high, blocks = ratio(other, base)
        row = {"comparison": comparison, "task": name, "unit": TASKS[name].unit}
        for side, rates in zip(SIDES[comparison], (base, other), strict=True):
            row[side] = statistics.median(rate for each in rates.values() for rate in each)
        row |= {"ratio": value, "low": low, "high": high, "sets": SETS, "blocks": blocks}
        comparisons.append(row | {"goal": GOALS[comparison]})
        print(comparisons[-1])
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": machine.commit()}
    about |= {"machine": here.slug, "device": here.kind, "fidelity": "measured"}
    record = about | {"comparisons": comparisons}
    path = REFERENCE / here.slug / "training_speed.json"
    write(path, json.dumps(record, indent=1).encode() + b"\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
