"""Clipping by the norm over all stages, against torch's on the unsplit model."""

import pytest
import torch
from clipping import CUTS, LOSS, MAX_NORM, NORM_TYPES, D, batch, everything, model, plain

from repro.gpipe import Pipeline, launch


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=4)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize(("K", "copies"), [(1, 1), (2, 1), (3, 1), (1, D), (2, D)])
def test_equals_plain_pytorch(ran, K, copies, norm_type):
    """Shared and sparse parameters count once, other number formats too, replicas not twice."""
    norms, state = plain(norm_type, copies)
    assert all(norm > 2 * MAX_NORM[norm_type] for norm in norms)
    for rank in range(K * copies):
        found = ran[rank][K, copies, norm_type]
        for ours, theirs in zip(found["norms"], norms, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
        assert found["after"] <= MAX_NORM[norm_type] * (1 + 1e-5)
        for name, value in found["state"].items():
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize("copies", [1, D])
def test_same_bits_for_every_k(ran, copies, norm_type):
    one = ran[0][1, copies, norm_type]
    for K in CUTS if copies == 1 else (1, 2):
        for rank in range(K * copies):
            found = ran[rank][K, copies, norm_type]
            assert all(torch.equal(a, b) for a, b in zip(found["norms"], one["norms"], strict=True))
            assert all(
                torch.equal(value, one["state"][name]) for name, value in found["state"].items()
            )


def test_ranks_that_differ_are_refused_on_all_and_can_go_on(ran):
    for rank in (0, 1):
        differ, wrong, late = ran[rank]["refused"]
        assert "'max_norm': 2.0" in differ
        assert "on rank 1" in differ
        assert wrong == "max_norm=-1.0: must be a number, at least 0; inf is allowed"
        assert "train_step has updated the weights already" in late
        assert "\n" not in differ + late


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0,), "max_norm=-1.0: must be a number, at least 0"),
        ((float("nan"),), "max_norm=nan"),
        (("large",), "max_norm='large'"),
        ((1.0, 0.0), "norm_type=0.0: must be above 0"),
    ],
)
def test_one_line_for_a_wrong_argument(arguments, message):
    pipe = Pipeline(model(sparse=False), 1, 1, device="cpu")
    with pytest.raises(ValueError, match=message):
        pipe.clip_grad_norm_(*arguments)


def test_without_gradients_the_norm_is_zero():
    pipe = Pipeline(model(sparse=True), 1, 1, device="cpu")
    assert pipe.clip_grad_norm_(1.0, float("inf")) == 0.0


def test_of_gradients_in_one_format_it_is_what_torch_computes():
    """To a relative 1e-6: the same numbers, added in the same order."""
    pipe = Pipeline(model(sparse=False)[3:], 1, 1, device="cpu")
    pipe.train_step(*batch(0), LOSS)
    theirs = torch.nn.utils.get_total_norm(
        [p.grad for p in pipe.parameters() if p.grad is not None]
    )
    torch.testing.assert_close(pipe.clip_grad_norm_(1.0), theirs, rtol=1e-6, atol=0)
