import pytest
import torch

from repro.data.tokens import PAD
from repro.gpipe import Pipeline
from repro.models import build
from repro.train.losses import classification, translation

SMALL = {"L": 1, "d": 16, "H": 24, "A": 2, "head_dim": 8, "V": 32, "S": 12, "T": 13, "dropout": 0.0}


def smoothed(logits, targets, smoothing):
    """Mean cross-entropy against smoothed targets, written out."""
    log_probabilities = logits.log_softmax(-1)
    of_targets = log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -((1 - smoothing) * of_targets + smoothing * log_probabilities.mean(-1)).mean()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_classification(smoothing):
    logits, auxiliary = torch.randn(2, 6, 5)
    targets = torch.randint(5, (6,))
    plain = smoothed(logits, targets, smoothing)
    torch.testing.assert_close(classification(smoothing)(logits, targets), plain)
    expected = plain + 0.4 * smoothed(auxiliary, targets, smoothing)
    both = (logits, auxiliary)
    torch.testing.assert_close(classification(smoothing)(both, targets), expected)


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


def test_unequal_micro_batches_give_the_loss_of_the_mini_batch():
    model = build("translation", **SMALL)
    inputs, targets = model.batch(7, 0)
    losses, gradients = [], []
    for M in (1, 3, 7):
        pipe = Pipeline(model.layers, 1, M, device="cpu")
        losses.append(pipe.train_step(inputs, targets, translation(0.1)).loss)
        gradients.append([p.grad for p in pipe.parameters()])
        losses.append(pipe.evaluate(inputs, targets, translation(0.1)).loss)
        pipe.close()
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-5)
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)
