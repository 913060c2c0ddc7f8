"""How fast `repro.train.trainer.Trainer` trains: against a plain PyTorch loop, and K=2 against K=1.

    nice .venv/bin/python tests/train/speed.py        # three minutes on two idle cores

Everything is measured on the CPU, with one thread in each process, and includes the reading of the
data. The two sides of a ratio take turns, so that a slow minute slows both. As a script it writes
what came out to results/reference/<machine>/training_speed.json.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro.data.batches import Batches
from repro.data.classification import ImageTask, open_images
from repro.data.pairs import TranslationTask, open_pairs
from repro.gpipe import Pipeline, launch
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import gather, map_leaves, split
from repro.harness import machine
from repro.harness.statistics import interval
from repro.io.files import write
from repro.models import build
from repro.train.losses import classification, translation
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer, make_optimizer

REFERENCE = Path(__file__).parents[2] / "results/reference"
GOALS = {"Trainer over a plain loop, K=1": 0.97, "K=2 over K=1, M=8": 1.6}
RECIPE = Recipe(lr=1e-3, optimizer="adam")
N, M = 64, 8
ROUNDS, STEPS, WARM_UP = 5, 8, 3  # steps of each side in a round, and steps that are not timed

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


def seconds_of(loop: Loop) -> float:
    """Seconds of a step, the mean over a round's."""
    began = time.perf_counter()
    loop(STEPS)
    return (time.perf_counter() - began) / STEPS


def two_stages() -> dict[str, float]:
    """Seconds of a step of each task in this stage of two."""
    torch.set_num_threads(1)
    seconds = {}
    for name, task in TASKS.items():
        loop = trainer_loop(task, 2, M, "always")
        loop(WARM_UP)
        seconds[name] = seconds_of(loop)
    return seconds


def measure() -> dict[tuple[str, str], list[dict[str, float]]]:
    """Throughputs of the two sides of a comparison and a task, in each round."""
    plain = {name: plain_loop(task) for name, task in TASKS.items()}
    whole = {name: trainer_loop(task, 1, 1, "never") for name, task in TASKS.items()}
    cut = {name: trainer_loop(task, 1, M, "always") for name, task in TASKS.items()}
    for loop in (*plain.values(), *whole.values(), *cut.values()):
        loop(WARM_UP)
    results = {(comparison, name): [] for comparison in GOALS for name in TASKS}
    for number in range(ROUNDS):
        on_two = launch(two_stages, stages=2)[0]
        for name, task in TASKS.items():
            # Whoever comes second has warmer caches, so the two sides change places.
            sides = {"plain": plain[name], "trainer": whole[name]}
            order = sorted(sides, reverse=number % 2 == 1)
            seconds = {side: seconds_of(sides[side]) for side in order}
            seconds_k = {"K=1": seconds_of(cut[name]), "K=2": on_two[name]}
            for comparison, taken in zip(GOALS, (seconds, seconds_k), strict=True):
                examples = N * task.per_example
                rates = {side: examples / s for side, s in sorted(taken.items())}
                results[comparison, name].append(rates)
    return results


def main() -> None:
    """Measure, print, and write the record."""
    torch.set_num_threads(1)
    here = machine.detect("laptop")
    comparisons = []
    for (comparison, name), rounds in measure().items():
        base, other = rounds[0]
        ratio, *ends = interval([each[other] / each[base] for each in rounds])
        low, high = (None if math.isnan(end) else end for end in ends)
        row = {"comparison": comparison, "task": name, "unit": TASKS[name].unit}
        row |= {side: statistics.median(each[side] for each in rounds) for side in (base, other)}
        row |= {"ratio": ratio, "low": low, "high": high, "rounds": len(rounds)}
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
