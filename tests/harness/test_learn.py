"""Trainings as runs: a pretraining is made once, evaluated, and shared."""

from math import inf
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from repro.experiments.consistency.runs import experiment
from repro.gpipe import launch
from repro.harness.request import Request
from repro.harness.schema import LearnRound
from repro.harness.spec import LearnSpec, RunSpec, Training
from repro.harness.tasks import learn

RECIPE = {"optimizer": "sgd", "lr": 0.01}
MODEL = {"L": 3, "D": 8, "image": 16, "num_classes": 10}
FIRST = Training(data=("digits",), recipe=RECIPE, steps=2)
OTHERS = {"rotate": 90}


def trained(
    pretraining: Training | None,
    outputs: int = 10,
    data_args: dict[str, Any] = OTHERS,
    **changed: Any,
) -> LearnRound:
    """The record of one step on rotated digits."""
    if outputs == 2:
        data_args = data_args | {"labels": "parity"}
    training = Training(
        data=("digits",), data_args=data_args, recipe=RECIPE, pretraining=pretraining
    )
    fields: dict[str, Any] = {"K": 1, "M": 1, "N": 16, "steps": 1, "task": "learn", "trace": False}
    arguments = MODEL | {"num_classes": outputs}
    fields |= {"model_args": arguments, "training": training} | changed
    spec = RunSpec(model="amoebanet-b", **fields)
    record: Any = learn.run(Request(spec), 0, []).record
    return record


def test_a_pretraining_is_made_once_and_shared_unless_the_seed_of_its_run_is_another(monkeypatch):
    cache: dict[str, Any] = {}
    monkeypatch.setattr(learn, "_pretrained", cache)
    classes = trained(FIRST)
    parity = trained(FIRST, outputs=2, steps=2)
    assert len(cache) == 1
    name = "pretraining accuracy"
    assert classes.metrics[name] == parity.metrics[name]
    assert name not in trained(None).metrics
    trained(FIRST, seed=1)
    assert len(cache) == 2
    for seed in (0, 1):
        trained(FIRST.model_copy(update={"seed": 7}), seed=seed)
    assert len(cache) == 3


def translated(**data_args: Any) -> LearnRound:
    """The record of two steps with two toy languages, of which six sentences each are decoded."""
    training = Training(
        data=("toy:echo", "toy:foxtrot"),
        data_args={"vocabulary": 300, "S": 12, "T": 12} | data_args,
        recipe={"optimizer": "adam", "lr": 0.01},
        decode=6,
    )
    sizes = {"L": 1, "d": 16, "H": 16, "A": 2, "head_dim": 8, "V": 400, "S": 12, "T": 12}
    fields: Any = {"K": 1, "M": 2, "N": 16, "steps": 2, "task": "learn", "trace": False}
    spec = RunSpec(model="translation", model_args=sizes, training=training, **fields)
    record: Any = learn.run(Request(spec), 0, []).record
    return record


def test_translations_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch):
    at_once = translated()
    monkeypatch.setattr(learn, "_TEST_BATCH", 5)
    in_parts = translated()
    assert in_parts.digest == at_once.digest
    assert in_parts.metrics == pytest.approx(at_once.metrics)
    of_languages = {
        f"{what} toy:{name}" for what in ("bleu", "loss") for name in ("echo", "foxtrot")
    }
    assert set(at_once.metrics) == {"loss", "bleu"} | of_languages


@pytest.mark.parametrize("by_error", [False, True])
def test_the_weights_of_the_lowest_validation_loss_or_error_are_kept(by_error):
    recipe = RECIPE | {"lr": 0.02}  # with which losses rise
    training = Training(
        data=("digits",), data_args=OTHERS, recipe=recipe, validations=4, by_error=by_error
    )

    def run(steps: int, validations: int, **changed: Any) -> LearnRound:
        return trained(
            None,
            steps=steps,
            training=training.model_copy(update={"validations": validations, **changed}),
        )

    found = run(4, 4)
    losses = {step: inf if loss is None else loss for step, loss in found.validation.items()}
    lowest = min(reversed(losses), key=losses.__getitem__)
    assert [*found.validation] == ["1", "2", "3", "4"]
    assert (max(losses.values()) <= 1) == by_error, "ten classes begin with a loss above 2"
    assert by_error or lowest != "4"
    assert found.digest == run(int(lowest), 1).digest
    assert "accuracy" in found.metrics
    assert run(1, 1, tuning=True).metrics == {}


def weights_in_float64(spec: LearnSpec) -> Tensor:
    """Weights and buffers after a run's steps; those before are the usual ones."""
    trainer, *_ = learn._trainer(Request(spec), spec, dist.get_rank())
    layers = trainer.pipe.module.double()
    next(layers.children()).register_forward_pre_hook(lambda _, images: (images[0].double(),))
    trainer.run(spec.steps)
    trainer.pipe.close()
    return torch.cat([value.detach().flatten() for value in layers.state_dict().values()])


def test_replicas_with_batch_norm_differ_from_one_pipeline_by_rounding_alone():
    """Ten steps in float32 make 5e-2 of a rounding, which would hide an error."""
    runs = [run.model_copy(update={"steps": 4}) for run in experiment().groups[0].runs[:4]]
    one, two = [run for run in runs if run.K == 1]
    (alone,), replicas = (launch(weights_in_float64, run, stages=run.D) for run in (one, two))
    for found in replicas:
        assert (found - alone).norm() < 1e-9 * alone.norm()
