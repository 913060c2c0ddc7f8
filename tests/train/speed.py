"""How fast `repro.train.trainer.Trainer` trains: against a plain PyTorch loop, and K=2 against K=1.

    nice .venv/bin/python tests/train/speed.py        # three minutes on two idle cores

Everything is measured on the CPU, with one thread in each process, and includes the reading of the
data. The two sides of a ratio take turns, so that a slow minute slows both. As a script it writes
what came out to results/reference/<machine>/training_speed.json.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from repro.data.batches import Batches
from repro.data.classification import open_images
from repro.data.pairs import learn_vocabulary, open_pairs
from repro.gpipe import Pipeline, launch
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import split
from repro.harness import machine
from repro.harness.statistics import interval
from repro.io.files import write
from repro.models import build
from repro.train.losses import classification, translation
from repro.train.optimizers import make_optimizer
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer

REFERENCE = Path(__file__).parents[2] / "results/reference"
GOALS = {"Trainer over a plain loop, K=1": 0.97, "K=2 over K=1, M=8": 1.6}
RECIPE = Recipe(lr=1e-3, optimizer="adam")
N, M = 64, 8
WARM_UP = 3  # steps that are not timed


@dataclass(frozen=True)
class Task:
    """A model with its data; `per_example` are the images or target tokens of an example."""

    name: str
    arguments: dict[str, Any]
    data: Callable[[], Batches]
    loss: Loss
    unit: str
    per_example: int


TASKS = {
    "images": Task(
        "amoebanet-b",
        {"L": 3, "D": 16, "image": 32, "num_classes": 10},
        lambda: open_images("digits", 32, N, seed=0),
        classification(),
        "images/s",
        1,
    ),
    "tokens": Task(
        "translation",
        {"L": 3, "d": 64, "H": 128, "A": 4, "head_dim": 16, "V": 256, "S": 24, "T": 24},
        lambda: open_pairs("toy:alfa", learn_vocabulary("toy:alfa", 256), 24, 24, N, seed=0),
        translation(),
        "tokens/s",
        24,
    ),
}


def plain_loop(task: Task) -> Callable[[int], float]:
    """A usual training loop on tensors in memory: does so many steps, and returns the last loss."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer() for layer in build(task.name, **task.arguments).layers))
    optimizer = make_optimizer(model, RECIPE)
    batches = _endless(task)

    def run(steps: int) -> float:
        last = math.nan
        for _ in range(steps):
            inputs, targets = next(batches)
            optimizer.zero_grad()
            value = task.loss(model(inputs), targets)
            value.backward()
            optimizer.step()
            last = value.item()
        return last

    return run


def _endless(task: Task) -> Iterator[tuple[Any, Any]]:
    """The task's batches out of tensors of all examples, shuffled in each epoch."""
    batches = task.data()
    read = [batches.next() for _ in range(20)]
    targets = torch.cat([target for _, target in read])
    if isinstance(read[0][0], torch.Tensor):
        images = torch.cat([inputs for inputs, _ in read])
        while True:
            for rows in torch.randperm(len(targets)).split(N):
                yield images[rows], targets[rows]
    source, target_in = (torch.cat([inputs[part] for inputs, _ in read]) for part in (0, 1))
    while True:
        for rows in torch.randperm(len(targets)).split(N):
            yield (source[rows], target_in[rows]), targets[rows]


def trainer_loop(task: Task, K: int, M: int, checkpoint: str) -> Callable[[int], float]:
    """The same by `Trainer` on K stages, which are cut by measured times."""
    torch.manual_seed(0)
    batches = task.data()
    inputs, _ = batches.next()
    pipe = Pipeline(
        build(task.name, **task.arguments).layers,
        K,
        M,
        checkpoint=checkpoint,
        balance="time",
        device="cpu",
        sample=split(inputs, M)[0],
    )
    trainer = Trainer(pipe, task.loss, RECIPE, batches)

    def run(steps: int) -> float:
        return trainer.run(trainer.step + steps).steps[-1].loss

    return run


def seconds_of(loop: Callable[[int], float], steps: int) -> float:
    """Seconds of a step, the mean over so many."""
    began = time.perf_counter()
    loop(steps)
    return (time.perf_counter() - began) / steps


def two_stages(steps: int) -> dict[str, float]:
    """Seconds of a step of each task in this stage of two."""
    torch.set_num_threads(1)
    seconds = {}
    for name, task in TASKS.items():
        loop = trainer_loop(task, 2, M, "always")
        loop(WARM_UP)
        seconds[name] = seconds_of(loop, steps)
    return seconds


def measure(rounds: int, steps: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Throughputs of every round: comparison -> task -> its two sides in each round."""
    plain = {name: plain_loop(task) for name, task in TASKS.items()}
    whole = {name: trainer_loop(task, 1, 1, "never") for name, task in TASKS.items()}
    cut = {name: trainer_loop(task, 1, M, "always") for name, task in TASKS.items()}
    for loop in (*plain.values(), *whole.values(), *cut.values()):
        loop(WARM_UP)
    results: dict[str, dict[str, list[dict[str, float]]]] = {
        comparison: {name: [] for name in TASKS} for comparison in GOALS
    }
    for number in range(rounds):
        on_two = launch(two_stages, steps, stages=2)[0]
        for name, task in TASKS.items():
            # Whoever comes second has warmer caches, so the two sides change places.
            sides = {"plain": plain[name], "trainer": whole[name]}
            order = sorted(sides, reverse=number % 2 == 1)
            seconds = {side: seconds_of(sides[side], steps) for side in order}
            seconds_k = {"K=1": seconds_of(cut[name], steps), "K=2": on_two[name]}
            for comparison, taken in zip(GOALS, (seconds, seconds_k), strict=True):
                examples = N * task.per_example
                results[comparison][name].append({side: examples / taken[side] for side in taken})
    return results


def record(results: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """The content of training_speed.json: medians, ratios with 95 % intervals, and the goals."""
    here = machine.detect("laptop")
    comparisons = []
    for comparison, tasks in results.items():
        for name, rounds in tasks.items():
            base, other = rounds[0]
            ratio, *ends = interval([each[other] / each[base] for each in rounds])
            low, high = (None if math.isnan(end) else end for end in ends)
            comparisons.append(
                {
                    "comparison": comparison,
                    "task": name,
                    "unit": TASKS[name].unit,
                    base: statistics.median(each[base] for each in rounds),
                    other: statistics.median(each[other] for each in rounds),
                    "ratio": ratio,
                    "low": low,
                    "high": high,
                    "rounds": len(rounds),
                    "goal": GOALS[comparison],
                }
            )
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": machine.commit(),
        "machine": here.slug,
        "device": here.kind,
        "fidelity": "measured",
        "comparisons": comparisons,
    }


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each side in each round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    content = record(measure(options.rounds, options.steps))
    for row in content["comparisons"]:
        print(row)
    path = REFERENCE / machine.detect("laptop").slug / "training_speed.json"
    write(path, json.dumps(content, indent=1).encode() + b"\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
