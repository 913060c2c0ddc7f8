"""What the processes of the trainer's tests run; at module level so that they can import it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.train.history import History
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer

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
    average = {}
    if trainer.average is not None:
        with trainer.average.in_place_of_weights():
            average = {
                key: value.clone() for key, value in trainer.pipe.module.state_dict().items()
            }
    weights = {key: value.clone() for key, value in trainer.pipe.module.state_dict().items()}
    slots = [
        value.clone()
        for entry in trainer.optimizer.state.values()
        for value in entry.values()
        if isinstance(value, Tensor)
    ]
    return {"weights": weights, "average": average, "slots": slots}


def interrupted(folder: Path, steps: int, stop: int, K: int, D: int = 1) -> tuple[Any, Any]:
    """The state after all steps in one go, and after a stop and a resume."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    assert world == K * D
    options: dict[str, Any] = {"evaluation": [Numbers().next()], "evaluate_every": 2, "D": D}
    whole = make(None, K, **options)
    whole.run(steps)
    before = make(folder, K, **options)
    before.run(stop)
    after = make(folder, K, **options)
    assert after.resume() == stop
    after.run(steps)
    expected = without_seconds(whole.history)
    # The interrupted run was asked for a shorter training, whose end was evaluated.
    resumed = without_seconds(after.history)
    resumed.evaluations = [each for each in resumed.evaluations if each.step % 2 == 0]
    expected.evaluations = [each for each in expected.evaluations if each.step % 2 == 0]
    return (state(whole), expected), (state(after), resumed)


def saved_by(folder: Path, K: int, steps: int) -> dict[str, Any]:
    """Train and save on K stages."""
    trainer = make(folder, K)
    trainer.run(steps)
    return state(trainer)


def endless(folder: Path) -> None:
    """Train until somebody kills it."""
    make(folder, dist.get_world_size(), save_every=1).run(10**9)
