"""Training loops as users write them, against the same loops with the unsplit model."""

import re

import pytest
import torch
from loops import (
    LOSS,
    N,
    batch,
    everything,
    model,
    pipeline,
    plain_loaded,
    unequal,
)
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR

from repro.gpipe import Pipeline, launch
from repro.gpipe.runtime.launch import StageError


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=4)


def assert_close(found, expected):
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def test_an_optimizer_in_the_last_step_of_a_window_is_refused():
    """It would clear the gradients of the steps before."""
    pipe, optimizer = pipeline(1)
    x, y = batch(0)
    pipe.train_step(x, y, LOSS)
    with pytest.raises(
        ValueError, match=r"^optimizer: train_step would clear the gradients"
    ) as caught:
        pipe.train_step(x, y, LOSS, optimizer)
    assert "\n" not in str(caught.value)
    optimizer.zero_grad()
    pipe.train_step(x, y, LOSS, optimizer)
    pipe.train_step(x, y, LOSS, optimizer)


def test_keys_that_json_makes_strings_of_are_refused(tmp_path):
    """A MultiStepLR would look for the epoch 2 among the strings "2" and "4" in vain."""
    pipe, optimizer = pipeline(1)
    state = MultiStepLR(optimizer, [2, 4]).state_dict()
    with pytest.raises(
        ValueError, match=r"extra\['scheduler'\]\['milestones'\]: JSON turns its key 2 into"
    ) as caught:
        pipe.save(tmp_path, optimizer, extra={"scheduler": state})
    assert "\n" not in str(caught.value)
    del state["milestones"]
    pipe.save(tmp_path, optimizer, extra={"scheduler": state})
    scheduler = MultiStepLR(optimizer, [2, 4])
    scheduler.load_state_dict(pipe.load(tmp_path, optimizer)["scheduler"])
    assert dict(scheduler.milestones) == {2: 1, 4: 1}


@pytest.mark.parametrize("K", [1, 2, 3])
def test_only_the_first_and_the_last_stage_read(ran, K):
    expected = plain_loaded()
    for rank in range(K):
        found = ran[rank]["loaded", K]
        assert found["read"] == (0 if rank == 1 and K == 3 else 6)
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert_close(found["state"], expected["state"])


def test_no_inputs_on_the_first_stage(ran):
    assert ran[0]["nothing"].startswith("inputs: None, but this stage reads the mini-batch")
    assert all(ran[rank]["nothing"] and "\n" not in ran[rank]["nothing"] for rank in (0, 1))


def test_no_targets_on_the_last_stage():
    pipe, optimizer = pipeline(1)
    with pytest.raises(
        ValueError, match="targets: None on the last stage, and the loss failed with"
    ) as caught:
        pipe.train_step(batch(0)[0], None, LOSS, optimizer)
    assert "\n" not in str(caught.value)
    pipe.train_step(batch(0)[0], None, lambda outputs, _targets: outputs.square().mean(), optimizer)


def test_a_loss_that_fails_by_itself_is_not_blamed_on_targets():
    pipe = Pipeline([nn.Linear(6, 6)], 1, 1, device="cpu")
    with pytest.raises(AttributeError, match="no_such"):
        pipe.train_step(*batch(0), lambda outputs, _targets: outputs.no_such)


def test_targets_of_another_mini_batch():
    with pytest.raises(StageError, match=f"targets: {N - 1} examples, but the inputs have {N}"):
        launch(unequal, stages=2)


def test_lbfgs_is_refused():
    pipe = Pipeline(model(), 1, 1, device="cpu")
    with pytest.raises(
        ValueError, match=r"^optimizer: LBFGS needs the loss several times"
    ) as caught:
        pipe.train_step(*batch(0), LOSS, torch.optim.LBFGS(pipe.parameters()))
    assert "\n" not in str(caught.value)


def test_the_text_of_a_pipeline(ran):
    first, cut, own = ran[3]["shown"].split("\n")
    assert first == "Pipeline: K=2, M=3, D=2, schedule gpipe, checkpoint always"
    assert re.fullmatch(r"  cut: 2\+3 layers as given.*", cut)
    assert own == "  here: replica 1, stage 1 on cpu, layers 2 to 4: 2 Tanh, 3 Linear, 4 Linear"
