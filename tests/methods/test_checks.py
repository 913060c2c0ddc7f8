"""The checks themselves, on methods that are right, or wrong in one way that is known."""

from functools import partial

import pytest
import torch
from fakes import (
    CountsTwice,
    EqualWeights,
    ForgetsAMode,
    OtherMask,
    Overflows,
    Refuses,
    Right,
    examined,
)
from torch import nn

from repro.gpipe import PipelineConfig
from repro.methods import Setup, make
from repro.methods.checks import NAMES, examine
from repro.models import build


def test_what_is_right_is_ok_in_every_check():
    found = examined(Right)
    assert tuple(found) == NAMES
    assert {name: check.verdict for name, check in found.items()} == dict.fromkeys(NAMES, "ok")


@pytest.mark.parametrize(
    ("method", "wrong", "evidence"),
    [
        (CountsTwice, "batch norm", "num_batches_tracked is 8"),
        (OtherMask, "dropout", "always against never"),
        (EqualWeights, "unequal micro-batches", "micro-batches of 5, 4, 4, 4"),
        (ForgetsAMode, "evaluation", "off by"),
    ],
)
def test_each_fault_is_found_by_its_own_check_alone(method, wrong, evidence):
    found = examined(method)
    assert [name for name, check in found.items() if check.verdict != "ok"] == [wrong]
    assert found[wrong].verdict == "wrong"
    assert found[wrong].value is not None
    assert evidence in found[wrong].evidence


def test_an_error_is_a_refusal_with_its_words():
    found = examined(Refuses)["unequal micro-batches"]
    assert (found.verdict, found.value, found.evidence) == (
        "refused",
        None,
        "RuntimeError: sizes differ",
    )


def test_numbers_that_are_none_are_wrong():
    found = examined(Overflows)
    assert found["evaluation"].verdict == "wrong"
    assert "not finite" in found["evaluation"].evidence


def test_a_model_without_such_layers_has_nothing_to_check():
    found = examined(Right, layers=[nn.Flatten(), nn.Linear(192, 5)])
    assert {name for name, check in found.items() if check.verdict == "none"} == {
        "batch norm",
        "dropout",
    }


def test_a_mean_over_tokens_is_weighted_by_tokens():
    model = build("translation", L=1, d=16, H=24, A=2, head_dim=8, V=32, S=12, T=13)
    inputs, _ = model.batch(1, 0)
    setup = Setup(
        model.layers, model.loss, PipelineConfig(1, 4), sample=inputs, device=torch.device("cpu")
    )
    found = examine(partial(make, "repro"), setup, model.batch, 8)
    assert {name for name, check in found.items() if check.verdict == "ok"} == set(NAMES) - {
        "batch norm"
    }
