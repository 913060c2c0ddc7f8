import pytest
import torch

from repro.data.tokens import PAD
from repro.train.losses import classification, translation


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_are_means_over_what_is_no_padding_with_smoothed_targets(smoothing):
    logits, targets = torch.randn(4, 7, 9), torch.randint(1, 9, (4, 7))
    targets[1:, 3:] = PAD
    real = targets != PAD
    log_probabilities = logits[real].log_softmax(-1)
    of_targets = log_probabilities.gather(-1, targets[real].unsqueeze(-1)).squeeze(-1)
    expected = -((1 - smoothing) * of_targets + smoothing * log_probabilities.mean(-1)).mean()
    loss = translation(smoothing)
    torch.testing.assert_close(loss(logits, targets), expected)
    assert loss.weight(targets) == 7 + 3 * 3
    of_classes = classification(smoothing)(logits[real], targets[real])
    torch.testing.assert_close(of_classes, expected)
