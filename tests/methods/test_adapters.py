"""The adapters of the peer libraries, held against the unsplit model and against ours."""

from functools import partial
from importlib.util import find_spec

import pytest
from fakes import TORCH_SCHEDULES, deepspeed_ranks, examined, two_ranks

from repro.gpipe import launch
from repro.methods import make


@pytest.fixture(scope="module")
def results():
    ranks = launch(two_ranks, stages=3)
    assert ranks[2] is None
    assert ranks[0] == ranks[1]
    return ranks[0]


def test_ours_is_right_in_every_check(results):
    assert {check.verdict for check in results["repro"][0].values()} == {"ok"}


@pytest.mark.parametrize("library", TORCH_SCHEDULES)
def test_torch_computes_the_gradients_of_the_unsplit_model(results, library):
    checks, _ = results[library]
    for name in ("gradients", "evaluation", "dropout"):
        assert checks[name].verdict == "ok", checks[name]


@pytest.mark.parametrize("library", TORCH_SCHEDULES)
def test_torch_counts_recomputed_batches_twice_and_wants_equal_micro_batches(results, library):
    """If these change, torch has changed: the report's table says what it does now."""
    checks, _ = results[library]
    assert "num_batches_tracked is 8" in checks["batch norm"].evidence
    assert checks["unequal micro-batches"].verdict == "refused"
    assert "batch_size" in checks["unequal micro-batches"].evidence


@pytest.mark.parametrize("library", TORCH_SCHEDULES)
def test_torch_trains_as_ours_does(results, library):
    (_, ours), (_, theirs) = results["repro"], results[library]
    assert theirs == pytest.approx(ours, abs=1e-6)
    assert ours[-1] < ours[0]


@pytest.mark.skipif(
    find_spec("torchgpipe") is None, reason="torchgpipe is not installed; it is the extra `peers`"
)
def test_torchgpipe_is_right_but_for_the_variance():
    checks = examined(partial(make, "torchgpipe"))
    assert [name for name, check in checks.items() if check.verdict != "ok"] == ["batch norm"]
    assert (checks["batch norm"].value or 1.0) < 1e-3  # biased
    assert "micro-batches of 5, 5, 5, 2" in checks["unequal micro-batches"].evidence


@pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed; it is the extra `peers`"
)
def test_deepspeed_trains_as_ours_does():
    for checks, ours, theirs in launch(deepspeed_ranks, stages=2):
        for name in ("gradients", "evaluation", "dropout"):
            assert checks[name].verdict == "ok", checks[name]
        assert "num_batches_tracked is 8" in checks["batch norm"].evidence  # recomputed once
        assert checks["unequal micro-batches"].verdict == "refused"
        assert theirs == pytest.approx(ours, abs=1e-6)
        assert ours[-1] < ours[0]
