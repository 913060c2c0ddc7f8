"""Losses and metrics, which the last stage computes.

Each is a mean over the examples of a micro-batch, or, if it is `Weighted`, over the tokens that are
not padding. So the loss of a mini-batch does not depend on M.
"""

from functools import partial

from torch import Tensor
from torch.nn import functional

from repro.gpipe import Weighted
from repro.gpipe.core.loss import Loss
from repro.models.translation import cross_entropy, target_tokens


def classification(smoothing: float = 0.0) -> Loss:
    """Mean cross-entropy of logits [N, classes] and classes int64 [N].

    `smoothing` is the share of the probability that is spread evenly over all classes.
    """
    return partial(functional.cross_entropy, label_smoothing=smoothing)


def translation(smoothing: float = 0.0) -> Weighted:
    """Mean cross-entropy over target tokens that are not PAD, of logits [N, T, V] and int64 [N, T].

    `smoothing` is the share of the probability that is spread evenly over the vocabulary.
    """
    return Weighted(partial(cross_entropy, label_smoothing=smoothing), target_tokens)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Share of the examples with the greatest logit at their class (top-1)."""
    return (outputs.argmax(1) == targets).float().mean()
