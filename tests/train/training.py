"""What the processes of the trainer's tests run; at module level so that they can import it."""

from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.models import build
from repro.train.evaluation import greedy
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
    """In place of `Batches`: mini-batch n has the random numbers of the generator n."""

    def __init__(self) -> None:
        self.read = 0

    def next(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.read)
        inputs = torch.randn(N, WIDTH, generator=generator)
        self.read += 1
        return inputs, inputs.argmax(1) % CLASSES


def layers() -> list[Any]:
    """Dropout and batch norm, so that random state and running statistics take part."""
    return [
        lambda: nn.Linear(WIDTH, 8),
        lambda: nn.BatchNorm1d(8),
        nn.ReLU,
        lambda: nn.Dropout(0.2),
        lambda: nn.Linear(8, CLASSES),
    ]


def make(stages: int, recipe: Recipe = RECIPE, D: int = 1, **metrics: Any) -> Trainer:
    """A trainer of these layers, whose replicas all read the same numbers."""
    pipe = Pipeline(layers(), stages, M, replicas=D, device="cpu")
    data: Any = Numbers()
    return Trainer(pipe, LOSS, recipe, data, metrics)


def trained(stages: int) -> tuple[list[float], dict[str, float], dict[str, Tensor]]:
    """Losses of five steps, an evaluation, and the average of this stage's weights."""
    trainer = make(stages)
    trainer.run(5)
    evaluated = trainer.evaluate([Numbers().next()])
    assert trainer.average is not None
    with trainer.average.in_place_of_weights():
        average = {name: value.clone() for name, value in trainer.pipe.module.state_dict().items()}
    return [step.loss for step in trainer.steps], evaluated, average


def on_two_processes() -> dict[str, Any]:
    """A training and translations with K=2, and evaluations with D=2."""
    found: dict[str, Any] = {"trained": trained(2), "translated": translated(2)}
    trainer = make(1, D=2)
    batch = inputs, targets = Numbers().next()
    half = inputs[trainer.pipe.replica :: 2], targets[trainer.pipe.replica :: 2]
    found["evaluated"] = trainer.evaluate([half]), trainer.evaluate([batch])
    try:
        trainer.evaluate([batch] * (1 + trainer.pipe.replica))
    except ValueError as error:
        found["refused"] = str(error)
    return found


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
