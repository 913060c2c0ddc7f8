"""The checks themselves, on methods that are right, or wrong in one way that is known."""

import pytest
from fakes import (
    CountsTwice,
    EqualWeights,
    ForgetsAMode,
    OtherMask,
    Refuses,
    Right,
    examined,
)

from repro.methods.checks import NAMES


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
