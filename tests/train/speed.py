"""How fast `repro.train.trainer.Trainer` trains: against a plain PyTorch loop, and K=2 against K=1.

    nice .venv/bin/python tests/train/speed.py        # three minutes on two idle cores

Everything is measured on the CPU, with one thread in each process, and includes the reading of the
data. Loops are measured as the runs of an experiment are: step against step in random order, in
several sets of fresh processes. It prints the ratios as they stand in training_speed.json, of which
docs/performance.md has the place.
"""

import json
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from repro.data.classification import ImageTask, open_images
from repro.data.pairs import TranslationTask, open_pairs
from repro.gpipe import Pipeline, launch
from repro.gpipe.core.microbatch import gather, map_leaves, split
from repro.harness.statistics import interval_of_sets, quotients
from repro.models import build
from repro.train.losses import classification, translation
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer, make_optimizer

N, M = 64, 8
SETS, BLOCKS, WARM_UP = 3, 30, 3  # a block is a step of each loop; the first ones are not timed
COMPARISONS = {  # base, what is compared with it, the least ratio that is aimed at
    "Trainer over a plain loop, K=1": ("plain", "trainer", 0.97),
    "K=2 over K=1, M=8": ("K=1", "K=2", 1.6),
}
# Loop of the trainer -> K, M and what is recomputed.
TRAINERS = {"K=2": (2, M, "always"), "K=1": (1, M, "always"), "trainer": (1, 1, "never")}
RECIPE = Recipe(lr=1e-3, optimizer="adam")
PAIRS = TranslationTask(names=("toy:alfa",), vocabulary=256, S=24, T=24)
SIZES = {"L": 3, "d": 64, "H": 128, "A": 4, "head_dim": 16, "V": 256, "S": 24, "T": 24}
# The model, its data, and its loss.
TASKS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
    "images": (
        partial(build, "amoebanet-b", L=3, D=16, image=32, num_classes=10),
        partial(open_images, ImageTask(size=32), N, seed=0),
        classification(),
    ),
    "tokens": (
        partial(build, "translation", **SIZES),
        partial(open_pairs, PAIRS, N, seed=0),
        translation(),
    ),
}


def plain_loop(task: str) -> Callable[[], object]:
    """A step of a usual training loop on tensors in memory."""
    model_of, data, loss_of = TASKS[task]
    torch.manual_seed(0)
    model = nn.Sequential(*(layer() for layer in model_of().layers))
    optimizer = make_optimizer(model, RECIPE)
    batches = data()
    everything = gather([batches.next() for _ in range(20)])
    shuffled = (rows for _ in count() for rows in torch.randperm(20 * N).split(N))

    def step() -> None:
        rows = next(shuffled)
        inputs, targets = map_leaves(torch.Tensor, lambda x: x[rows], everything)
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def trainer_loop(task: str, K: int, M: int, checkpoint: str) -> Callable[[], object]:
    """The same by `Trainer` on K stages, which are cut by measured times."""
    model, data, loss = TASKS[task]
    batches = data()
    inputs, _ = batches.next()
    cut: Any = {"balance": "time", "sample": split(inputs, M)[0], "device": "cpu"}
    pipe = Pipeline(model().layers, K, M, checkpoint=checkpoint, **cut)
    trainer = Trainer(pipe, loss, RECIPE, batches)
    return lambda: trainer.run(trainer.step + 1)


def rates_of_set(number: int) -> dict[tuple[str, str], list[float]]:
    """Task and loop -> its steps a second in each block of a set."""
    loops = {}  # in which this process of two takes part
    for task in TASKS:
        for name, settings in TRAINERS.items():
            if dist.get_rank() < settings[0]:
                loops[task, name] = trainer_loop(task, *settings)
        if dist.get_rank() == 0:
            loops[task, "plain"] = plain_loop(task)
    every = [(task, name) for task in TASKS for name in (*TRAINERS, "plain")]
    rates: dict[tuple[str, str], list[float]] = {each: [] for each in every}
    order = random.Random(number)
    for block in range(WARM_UP + BLOCKS):
        for each in order.sample(every, len(every)):
            dist.barrier()
            if each in loops:
                began = time.perf_counter()
                loops[each]()
                if block >= WARM_UP:
                    rates[each].append(1 / (time.perf_counter() - began))
    return rates


def main() -> None:
    """Measure and print."""
    sets = [launch(rates_of_set, number, stages=2)[0] for number in range(SETS)]
    for comparison, (base, other, goal) in COMPARISONS.items():
        for task in TASKS:
            ratios = [quotients(rates[task, other], rates[task, base]) for rates in sets]
            value, low, high = interval_of_sets(ratios)
            row = {"comparison": comparison, "task": task, "ratio": value, "low": low, "high": high}
            print(json.dumps(row | {"sets": SETS, "blocks": SETS * BLOCKS, "goal": goal}))


if __name__ == "__main__":
    main()
