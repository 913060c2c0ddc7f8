import pytest
import torch

from repro.data import text


@pytest.mark.parametrize(("N", "T", "V"), [(3, 10, 16), (2, 64, 1000), (1, 1, 50)])
def test_targets_are_the_next_tokens(N, T, V):
    inputs, targets = text.batch(N, T, V, seed=0)
    assert inputs.shape == targets.shape == (N, T)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert min(inputs.min(), targets.min()) >= 0
    assert max(inputs.max(), targets.max()) < V
