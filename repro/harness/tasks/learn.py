"""The task "learn": train to an accuracy or a translation quality, and evaluate.

Data, order, dropout and initial weights depend on the seed alone, so runs of the same training with
other K have the same weights, bit for bit on the CPU.
"""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import islice
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repro.data.batches import Batches
from repro.data.bleu import score
from repro.data.classification import ImageTask, evaluation_images, open_images
from repro.data.pairs import TranslationTask, evaluation_pairs, open_pairs
from repro.data.sources import Part
from repro.gpipe import Pipeline
from repro.gpipe.core.loss import Loss
from repro.gpipe.tree import split
from repro.harness.cut import config_of
from repro.harness.request import Request, Result
from repro.harness.schema import LearnRound
from repro.harness.spec import LearnSpec, Training, canonical
from repro.harness.tasks.setup import device_of, facts_of
from repro.models import Model, build
from repro.train.evaluation import greedy
from repro.train.losses import accuracy, classification, translation
from repro.train.recipe import Recipe
from repro.train.trainer import Trainer

_TEST_BATCH = 256  # examples that are evaluated at once
_LOSSES = 200  # of training that are recorded at most, evenly spaced
_VALIDATED = 2000  # images, or pairs of a language, at most, which are evaluated often


Examples = Sequence[tuple[Any, Any]]  # batches of inputs and targets


class Data(NamedTuple):
    batches: Batches  # to train on
    test: Examples  # the same on every replica
    validation: Examples
    metrics: Mapping[str, Loss]  # on test data; the loss among them has no label smoothing
    loss: Loss  # to train with


class Pretrained(NamedTuple):
    state: Mapping[str, Tensor]  # weights and buffers of the unsplit model, by name
    metrics: Mapping[str, float]  # on the test data of the pretraining


_pretrained: dict[str, Pretrained] = {}  # what this process has trained for several of its runs


def run(request: Request, rank: int, _groups: list[Any]) -> Result:
    began = time.perf_counter()
    spec = request.spec
    assert isinstance(spec, LearnSpec)
    training, start = spec.training, _pretrain(request, spec, rank)
    trainer, data, model = _trainer(request, spec, rank)
    with closing(trainer.pipe):
        if start is not None:
            trainer.start_from(start.state)
        facts = facts_of(model, began)
        validation = _train(trainer, spec, data.validation)
        # Test data has no part in choosing a rate.
        metrics: dict[str, float | None] = {}
        if not training.tuning:
            metrics |= trainer.evaluate(data.test)
        if start is not None:
            metrics |= {f"pretraining {name}": value for name, value in start.metrics.items()}
        facts["labels"] |= trainer.batches.labels
        if training.decode:
            scores, facts["labels"]["BLEU"] = _translate(trainer, training)
            metrics |= scores
        module = trainer.pipe.module
        state = _of_all_stages(trainer.pipe, module.state_dict())
        parameters = [*_of_all_stages(trainer.pipe, dict(module.named_parameters())).values()]
    steps = trainer.steps
    record = LearnRound(
        loss=[step.loss for step in steps[:: math.ceil(len(steps) / _LOSSES)]],
        metrics=metrics,
        parameters=sum(value.numel() for value in parameters),
        seconds=sum(step.seconds for step in steps),
        examples=sum(step.examples for step in steps),
        digest=_digest(state),
        validation={**validation},
        weights=_sample(parameters, training.weights),
        balance=list(trainer.pipe.balance),
        **facts,
    )
    return Result(record)


def _train(trainer: Trainer, spec: LearnSpec, examples: Examples) -> dict[str, float]:
    """Train, and restore the weights of the lowest loss on the validation examples, if validated.

    Returns the validation losses, or errors, by the number of updates before each.
    """
    losses: dict[str, float] = {}
    best: dict[str, Tensor] = {}
    lowest = math.inf
    for number in range(1, spec.training.validations + 1):
        trainer.run(round(spec.steps * number / spec.training.validations))
        values = trainer.evaluate(examples)
        loss = 1 - values["accuracy"] if spec.training.by_error else values["loss"]
        losses[str(len(trainer.steps))] = loss
        # Errors are often equal: then the last, which is nearest to rest.
        if loss <= lowest:
            state = trainer.pipe.module.state_dict()
            lowest, best = loss, {name: tensor.clone() for name, tensor in state.items()}
    trainer.run(spec.steps)
    if best:
        trainer.pipe.module.load_state_dict(best)
    return losses


def _trainer(request: Request, spec: LearnSpec, rank: int) -> tuple[Trainer, Data, Model]:
    """The trainer of a run, its data, and the model."""
    model, recipe = build(spec.model, **spec.arguments), Recipe(**spec.training.recipe)
    is_of_images = model.unit == "images/s"
    data = (_images if is_of_images else _languages)(spec, spec.training, recipe, rank)
    inputs, _ = model.batch(spec.N // spec.D, spec.seed)
    sample = split(inputs, spec.M)[0]
    pipe = Pipeline(
        model.layers,
        **config_of(request, model, sample).arguments,
        device=device_of(request.device, rank),
        seed=spec.seed,
        sample=sample,
    )
    return Trainer(pipe, data.loss, recipe, data.batches, data.metrics), data, model


def _images(spec: LearnSpec, training: Training, recipe: Recipe, rank: int) -> Data:
    (name,) = training.data
    arguments: dict[str, Any] = {"validation": training.validations > 0, **training.data_args}
    task = ImageTask(name=name, size=spec.model_args["image"], **arguments)
    batches = open_images(task, spec.N, spec.seed, rank // spec.K, spec.D)
    test = evaluation_images(task, _TEST_BATCH)
    held_out: Examples = ()
    if task.validation:
        held_out = evaluation_images(task, _TEST_BATCH, "validation", _VALIDATED)
    metrics = {"loss": classification(), "accuracy": accuracy}
    return Data(batches, test, held_out, metrics, classification(recipe.label_smoothing))


def _languages(spec: LearnSpec, training: Training, recipe: Recipe, rank: int) -> Data:
    task = _translation_task(training)
    batches = open_pairs(task, spec.N, spec.seed, rank // spec.K, spec.D)

    def part(name: Part) -> Examples:
        most = _VALIDATED if name == "validation" else None
        sets = [evaluation_pairs(task, each, _TEST_BATCH, most, name) for each in task.names]
        return [batch for batches, _ in sets for batch in batches]

    held_out = part("validation") if task.validation else ()
    # Negative log-likelihood of a target token in nats, as in Table 5 of arXiv:1811.06965v5.
    metrics = {"loss": translation()}
    loss = translation(recipe.label_smoothing)
    return Data(batches, part("test"), held_out, metrics, loss)


def _translation_task(training: Training) -> TranslationTask:
    arguments: dict[str, Any] = {"validation": training.validations > 0, **training.data_args}
    return TranslationTask(names=training.data, **arguments)


def _pretrain(request: Request, of: LearnSpec, rank: int) -> Pretrained | None:
    """The outcome of the run's pretraining; None without one."""
    spec = of.pretraining_run()
    if spec is None:
        return None
    key = canonical(spec.plain())
    if key not in _pretrained:
        trainer, data, _ = _trainer(request, spec, rank)
        with closing(trainer.pipe):
            _train(trainer, spec, data.validation)
            state = _of_all_stages(trainer.pipe, trainer.pipe.module.state_dict())
            _pretrained[key] = Pretrained(state, trainer.evaluate(data.test))
    return _pretrained[key]


def _of_all_stages(pipe: Pipeline, part: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The named tensors of all stages in layer order, on the CPU of every rank."""
    parts = pipe.engine.channel.all_gather({name: t.detach().cpu() for name, t in part.items()})
    tensors = {name: value for part in parts for name, value in part.items()}
    order = {name: position for position, name in enumerate(pipe.layer_names)}
    return {name: tensors[name] for name in sorted(tensors, key=lambda n: order[n.split(".")[0]])}


def _translate(trainer: Trainer, training: Training) -> tuple[dict[str, float], str]:
    pipe, task = trainer.pipe, _translation_task(training)
    tests = {
        name: evaluation_pairs(task, name, training.decode, training.decode) for name in task.names
    }
    # Languages together: a forward of many short sentences takes little longer than of few.
    sources = torch.cat([batches[0][0][0] for batches, _ in tests.values()])
    parts = sources.tensor_split(max(1, len(sources) // max(_TEST_BATCH, pipe.micro_batches)))
    translations = [row for part in parts for row in greedy(pipe, part, task.T).tolist()]
    texts = iter([task.subwords.decode(row) for row in translations])
    scores, signature = {}, ""
    for name, (_, references) in tests.items():
        hypotheses = list(islice(texts, len(references)))
        scores[f"bleu {name}"], signature = score(hypotheses, references)
    losses = {
        f"loss {name}": trainer.evaluate(batches)["loss"] for name, (batches, _) in tests.items()
    }
    return {"bleu": fmean(scores.values()), **scores, **losses}, signature


def _digest(state: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(state):
        total.update(name.encode())
        total.update(state[name].contiguous().numpy().tobytes())
    return total.hexdigest()


def _sample(parameters: Sequence[Tensor], count: int) -> list[float]:
    """So many values, evenly spaced over all parameters one after the other."""
    if not count:
        return []
    values = torch.cat([value.flatten() for value in parameters])
    places = torch.linspace(0, len(values) - 1, min(count, len(values))).long()
    return values[places].tolist()
