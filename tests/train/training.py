"""What the processes of the trainer's tests run; at module level so that they can import it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from leftovers import program, until
from torch import Tensor, nn

from repro.gpipe import Pipeline, launch
from repro.models import build
from repro.train import checkpoints
from repro.train.evaluation import greedy
from repro.train.history import History
from repro.train.losses import translation
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer

# As in processes that are launched: with more threads weights may have other bits.
torch.set_num_threads(1)
N, M, WIDTH, CLASSES = 12, 3, 6, 4
LOSS = nn.functional.cross_entropy
RECIPE = Recipe(
    lr=0.05,
    optimizer="rmsprop",
    epsilon=1.0,
    schedule="exponential",
    warm_up=3,
    decay_steps=2,
    weight_decay=1e-3,
    ema=0.9,
)


class Numbers:
    """Random numbers whose order is fixed by a seed: batch n is drawn from the generator (n)."""

    def __init__(self, replica: int = 0, replicas: int = 1) -> None:
        self.labels = {"data": "numbers"}
        self._replica, self._replicas = replica, replicas
        self.read = 0

    def next(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.read)
        inputs = torch.randn(N, WIDTH, generator=generator)
        self.read += 1
        part = slice(self._replica, None, self._replicas)
        return inputs[part], inputs.argmax(1)[part] % CLASSES

    def state(self) -> dict[str, Any]:
        return {"read": self.read}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.read = state["read"]


def layers() -> list[Any]:
    """Dropout and batch norm, so that random state and running statistics take part."""
    return [
        lambda: nn.Linear(WIDTH, 8),
        lambda: nn.BatchNorm1d(8),
        nn.ReLU,
        lambda: nn.Dropout(0.2),
        lambda: nn.Linear(8, CLASSES),
    ]


def make(
    folder: Path | None, K: int, recipe: Recipe = RECIPE, D: int = 1, **options: Any
) -> Trainer:
    """A trainer of these layers."""
    pipe = Pipeline(layers(), stages=K, micro_batches=M, replicas=D, device="cpu")
    data = Numbers(pipe.replica, pipe.replicas)
    return Trainer(pipe, LOSS, recipe, data, folder=folder, **options)


def without_seconds(history: History) -> History:
    """A history with what two runs have in common."""
    return History([step._replace(seconds=0.0) for step in history.steps], history.evaluations)


def state(trainer: Trainer) -> dict[str, Any]:
    """All that training changes on this stage."""
    module, average = trainer.pipe.module, {}
    if trainer.average is not None:
        with trainer.average.in_place_of_weights():
            average = deepcopy(module.state_dict())
    slots = [deepcopy(entry) for entry in trainer.optimizer.state.values()]
    return {"weights": deepcopy(module.state_dict()), "average": average, "slots": slots}


def interrupted(folder: Path, steps: int, stop: int, K: int, D: int = 1) -> tuple[Any, Any]:
    """State and history after all steps in one go, and after a stop and a resume."""
    options: dict[str, Any] = {"evaluation": [Numbers().next()], "evaluate_every": 2, "D": D}
    whole = make(None, K, **options)
    whole.run(steps)
    before = make(folder, K, **options)
    before.run(stop)
    after = make(folder, K, **options)
    assert after.resume() == stop
    after.run(steps)
    histories = without_seconds(whole.history), without_seconds(after.history)
    for history in histories:
        # The interrupted run was asked for a shorter training, whose end was evaluated.
        history.evaluations = [each for each in history.evaluations if each.step % 2 == 0]
    return (state(whole), histories[0]), (state(after), histories[1])


def on_two_processes(folder: Path) -> dict[str, Any]:
    """Interrupted trainings with K = 2 and with D = 2, and translations with K = 2."""
    return {
        "K=2": interrupted(folder / "stages", 5, 3, 2),
        "D=2": interrupted(folder / "replicas", 5, 3, 1, D=2),
        "translations": translated(2),
    }


@contextmanager
def started(run: Path, count: int, *command: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that trains into a folder, once so many checkpoints are there."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with program(run, [sys.executable, *command], env=environment, **output) as process:
        until(lambda: len(checkpoints.committed(run)) >= count, 50)
        yield process


def endless(folder: Path) -> None:
    """Train until somebody kills it."""
    make(folder, dist.get_world_size(), save_every=1).run(10**9)


# Translation.

T = 5
TRANSLATION = {"L": 1, "d": 32, "H": 64, "A": 2, "head_dim": 16, "V": 20, "S": 6, "T": T}


def translated(stages: int) -> tuple[Tensor, dict[str, Tensor]]:
    """Translations after three steps with dropout, and the weights of this stage.

    Only the first stage has the sources.
    """
    model = build("translation", **TRANSLATION, dropout=0.5)
    pipe = Pipeline(model.layers, stages, 4, device="cpu", seed=3)
    optimizer = torch.optim.Adam(pipe.parameters(), lr=1e-3)
    for step in range(3):
        inputs, targets = model.batch(9, step + 1)
        pipe.train_step(inputs, targets, translation(0.1), optimizer)
    sources = model.batch(9, 0)[0][0]
    tokens = greedy(pipe, sources if pipe.is_first else None, T)
    assert pipe.module.training
    weights = dict(pipe.module.state_dict())
    pipe.close()
    return tokens, weights


if __name__ == "__main__":
    launch(endless, Path(sys.argv[1]), stages=2)
