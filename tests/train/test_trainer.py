"""The training loop: updates, evaluation, fine-tuning, translation."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.data.tokens import BOS, EOS, PAD
from repro.gpipe import Pipeline, Weighted, launch
from repro.models import build
from repro.train.average import in_place_of_weights
from repro.train.evaluation import greedy
from repro.train.losses import accuracy, translation
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


def make(stages: int = 1, D: int = 1, **metrics: Any) -> Trainer:
    """A trainer of these layers, whose replicas all read the same numbers."""
    pipe = Pipeline(layers(), stages, M, replicas=D, device="cpu")
    data: Any = Numbers()
    return Trainer(pipe, LOSS, RECIPE, data, metrics)


def trained(stages: int) -> tuple[list[float], dict[str, float], dict[str, Tensor]]:
    """Losses of five steps, an evaluation, and the average of this stage's weights."""
    trainer = make(stages)
    trainer.run(5)
    evaluated = trainer.evaluate([Numbers().next()])
    assert trainer.average is not None
    with in_place_of_weights(trainer.average, trainer.pipe.module):
        average = {name: value.clone() for name, value in trainer.pipe.module.state_dict().items()}
    return [step.loss for step in trainer.steps], evaluated, average


def on_two_processes() -> dict[str, Any]:
    """A training and translations with K=2, and evaluations with D=2."""
    found: dict[str, Any] = {"trained": trained(2), "translated": translated(2)}
    trainer = make(D=2)
    batch = inputs, targets = Numbers().next()
    half = inputs[trainer.pipe.replica :: 2], targets[trainer.pipe.replica :: 2]
    found["evaluated"] = trainer.evaluate([half]), trainer.evaluate([batch])
    return found


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


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_the_trainer_does_what_a_plain_loop_does():
    """Same optimizer, schedule and average on the unsplit model, with plain PyTorch."""
    from timm.optim.rmsprop_tf import RMSpropTF

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    pipe = Pipeline(deepcopy(plain), 1, 1)
    data: Any = Numbers()
    trainer = Trainer(pipe, LOSS, RECIPE, data)
    trainer.run(6)

    weights = [p for p in plain.parameters() if p.dim() > 1]
    biases = [p for p in plain.parameters() if p.dim() == 1]
    optimizer = RMSpropTF(
        [{"params": weights, "weight_decay": 1e-3}, {"params": biases}],
        alpha=0.9,
        eps=1.0,
        momentum=0.9,
    )
    average = {key: value.clone() for key, value in plain.state_dict().items()}
    data, losses = Numbers(), []
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE.learning_rate(step)
        optimizer.zero_grad()
        inputs, targets = data.next()
        loss = LOSS(plain(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        decay = min(0.9, (2 + step) / (11 + step))
        for key, value in plain.state_dict().items():
            if value.is_floating_point():
                average[key] = decay * average[key] + (1 - decay) * value
            else:  # batch norm's count of batches
                average[key] = value.clone()
    torch.testing.assert_close([step.loss for step in trainer.steps], losses)
    torch.testing.assert_close(pipe.module.state_dict(), plain.state_dict())
    assert trainer.average is not None
    with in_place_of_weights(trainer.average, trainer.pipe.module):
        torch.testing.assert_close(dict(pipe.module.state_dict()), average)
    torch.testing.assert_close(pipe.module.state_dict(), plain.state_dict())


def test_the_average_is_evaluated_over_all_examples():
    """Also if the last batch is smaller than M."""
    inputs, targets = Numbers().next()
    batches = [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])]
    assert len(inputs[10:]) < M

    first = Weighted(LOSS, lambda targets: int(len(targets) > 2))
    trainer = make(accuracy=accuracy, first=first)
    trainer.run(4)
    values = trainer.evaluate(batches)
    assert trainer.average is not None
    module = trainer.pipe.module.eval()
    with in_place_of_weights(trainer.average, trainer.pipe.module), torch.no_grad():
        outputs = module(inputs)
    assert values["accuracy"] == pytest.approx(accuracy(outputs, targets).item())
    assert values["loss"] == pytest.approx(LOSS(outputs, targets).item(), rel=1e-5)
    # Only the first batch weighs.
    assert values["first"] == pytest.approx(LOSS(outputs[:10], targets[:10]).item(), rel=1e-5)


def test_fine_tuning_begins_with_a_new_last_layer():
    source, tuned, fresh = make(), make(), make()
    source.run(4)
    weights = source.pipe.module.state_dict()
    tuned.start_from(weights)
    initial = fresh.pipe.module.state_dict()
    assert not torch.equal(weights["4.weight"], initial["4.weight"])
    last = {name: value for name, value in initial.items() if name.startswith("4.")}
    assert_same(dict(tuned.pipe.module.state_dict()), dict(weights) | last)
    assert tuned.average is not None
    with in_place_of_weights(tuned.average, tuned.pipe.module):
        assert_same(dict(tuned.pipe.module.state_dict()), dict(weights) | last)


@pytest.fixture(scope="module")
def on_two():
    """What both processes returned."""
    return launch(on_two_processes, stages=2)


@pytest.mark.slow
def test_two_stages_train_and_evaluate_as_one(on_two):
    losses, evaluated, average = trained(1)
    for process in on_two:
        of_process, values, of_stage = process["trained"]
        assert (of_process, values) == (losses, evaluated)
        assert_same(of_stage, {name: average[name] for name in of_stage})


@pytest.mark.slow
def test_replicas_evaluate_their_own_batches_and_get_the_mean_of_all(on_two):
    for process in on_two:
        halves, whole = process["evaluated"]
        assert halves == pytest.approx(whole, rel=1e-6)


@pytest.mark.slow
def test_any_number_of_stages_gives_the_tokens_of_a_plain_loop(on_two):
    """Without padding of the target, sentence by sentence, on the unsplit model."""
    tokens, weights = translated(1)
    for process in on_two:
        translations, _ = process["translated"]
        assert torch.equal(translations, tokens)
    built = build("translation", **TRANSLATION)
    model = nn.Sequential(*(layer() for layer in built.layers)).eval()
    model.load_state_dict(weights)
    expected = []
    for source in built.batch(9, 0)[0][0]:
        translation = [BOS]
        while len(translation) <= T and translation[-1] != EOS:
            with torch.no_grad():
                logits = model((source.unsqueeze(0), torch.tensor([translation])))
            translation.append(int(logits[0, -1].argmax()))
        expected.append(translation[1:] + [PAD] * (T + 1 - len(translation)))
    assert len({tuple(translation) for translation in expected}) > 1
    assert tokens.tolist() == expected
