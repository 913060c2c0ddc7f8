"""Training inside torch.autocast, against an unsplit model whose forwards alone are inside."""

import pytest
import torch
from casting import CHECKPOINTS, LOOPS, everything

from repro.gpipe import launch


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=3)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
@pytest.mark.parametrize("K", [1, 2, 3])
def test_equals_plain_pytorch(ran, K, checkpoint, loop):
    """No weight misses its gradient, none is stale; B and optimizer run outside the region."""
    for rank in range(K):
        found = ran[rank][K, checkpoint, loop]
        for name, value in found["state"].items():
            torch.testing.assert_close(value, ran[0][loop][name], rtol=0, atol=0)


def test_the_two_loops_are_the_same_training_and_bfloat16_matters(ran):
    a, b, without = (ran[0][loop] for loop in LOOPS)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], without[name]) for name in a)


def test_the_caller_s_region_stays_and_bfloat16_crosses(ran):
    assert all(found["kept"] for key, found in ran[0].items() if isinstance(key, tuple))
    assert ran[1][3, "always", LOOPS[1]]["crossed"] == {torch.bfloat16}
