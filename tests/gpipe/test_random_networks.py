"""Random small networks that change from step to step train as in plain PyTorch.

`REPRO_NETWORKS=5000` trains more of them than the gate does.
"""

import os
from functools import partial

import pytest
import torch
from random_networks import STAGES, Trained, case, plain, train_cases

from repro.gpipe import launch

CASES = int(os.environ.get("REPRO_NETWORKS", "200"))
FIRST = int(os.environ.get("REPRO_FIRST_NETWORK", "0"))


def joined(stages: list[Trained]) -> Trained:
    """The parts of a model put together; layers keep their keys on whichever stage they are."""
    state = {key: tensor for stage in stages for key, tensor in stage.state.items()}
    return Trained(
        stages[0].losses, state, {k: g for stage in stages for k, g in stage.gradients.items()}
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_random_networks_train_as_in_plain_pytorch():
    numbers = range(FIRST, FIRST + CASES)
    ranks = launch(train_cases, numbers, stages=STAGES)
    wrong = []
    for n, number in enumerate(numbers):
        what = case(number)
        own = joined([rank[n][0] for rank in ranks if rank[n][0] is not None])
        expected, alone = plain(what), ranks[0][n][1]
        try:
            assert alone is not None
            as_plain(own, expected, what.dtype)
            as_with_one_stage(own, alone)
        except AssertionError as error:
            wrong.append(f"{what}\n    {' '.join(str(error).split())[:300]}")
    assert not wrong, f"{len(wrong)} of {CASES}:\n" + "\n".join(wrong[:20])


def as_plain(own: Trained, expected: Trained, dtype: torch.dtype) -> None:
    """The same but for rounding: losses, weights, buffers, and which gradients there are."""
    rtol, atol = (1e-7, 1e-9) if dtype == torch.float64 else (2e-3, 2e-5)
    torch.testing.assert_close(own.losses, expected.losses, rtol=rtol, atol=atol)
    assert own.state.keys() == expected.state.keys()
    for key, tensor in expected.state.items():
        torch.testing.assert_close(
            own.state[key], tensor, rtol=rtol, atol=atol, msg=partial(str.format, key + ": {}")
        )
    missing = {key for key, gradient in own.gradients.items() if gradient is None}
    assert missing == {key for key, gradient in expected.gradients.items() if gradient is None}


def as_with_one_stage(own: Trained, alone: Trained) -> None:
    """The same to the bit."""
    assert own.losses == alone.losses, "bits of the losses"
    different = [
        key for key, tensor in alone.state.items() if not torch.equal(own.state[key], tensor)
    ]
    assert not different, f"bits of {different}"
