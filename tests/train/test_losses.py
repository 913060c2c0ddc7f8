import pytest
import torch

from repro.data.tokens import PAD
from repro.train.losses import classification, translation


def smoothed(logits, targets, smoothing):
    """Mean cross-entropy against smoothed targets, written out."""
    log_probabilities = logits.log_softmax(-1)
    of_targets = log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -((1 - smoothing) * of_targets + smoothing * log_probabilities.mean(-1)).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification(smoothing):
    logits = torch.randn(6, 5)
    targets = torch.randint(5, (6,))
    plain = smoothed(logits, targets, smoothing)
    torch.testing.assert_close(classification(smoothing)(logits, targets), plain)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_translation_leaves_padding_out(smoothing):
    logits, targets = torch.randn(4, 7, 9), torch.randint(1, 9, (4, 7))
    targets[1:, 3:] = PAD
    real = targets != PAD
    loss = translation(smoothing)
    torch.testing.assert_close(
        loss(logits, targets), smoothed(logits[real], targets[real], smoothing)
    )
    assert loss.weight(targets) == 7 + 3 * 3
