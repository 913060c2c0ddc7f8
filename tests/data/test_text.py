import torch

from repro.data import text


def test_targets_are_the_next_tokens():
    inputs, targets = text.batch(3, 10, 16, seed=0)
    assert inputs.shape == targets.shape == (3, 10)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert 0 <= min(inputs.min(), targets.min()) <= max(inputs.max(), targets.max()) < 16
