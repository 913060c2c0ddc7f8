"""The loss of a mini-batch: what its micro-batches weigh, and what is refused."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core.loss import MeanLoss


@pytest.mark.parametrize(
    "loss",
    [
        nn.MSELoss(reduction="sum"),
        partial(nn.functional.mse_loss, reduction="sum"),
        Weighted(nn.MSELoss(reduction="sum"), len),
    ],
)
def test_a_sum_is_no_mean(loss):
    """It would be averaged over the micro-batches; one micro-batch is the whole mini-batch."""
    data = torch.arange(8.0)[:, None], torch.zeros(8, 1)
    with pytest.raises(ValueError, match='reduction="sum", and the losses of the micro-batches'):
        Pipeline([nn.Identity()], 1, 4, device="cpu").evaluate(*data, loss)
    assert Pipeline([nn.Identity()], 1, 1, device="cpu").evaluate(*data, loss).loss == 140.0


def test_what_weighs_nothing_is_not_asked_for_and_spoils_nothing():
    """Its outputs may be NaN: an attention over padding alone."""
    asked = []

    def loss(outputs, _targets):
        asked.append(outputs)
        return outputs.sum()

    head = MeanLoss(Weighted(loss, lambda t: t[0]), torch.tensor([0, 4]), 2, 2, lambda total: total)
    outputs = torch.tensor([[math.nan, math.inf, 1e38, 1e38]], requires_grad=True)
    share = head(0, (torch.tensor([1]), {"logits": outputs}))
    share.backward()
    assert share.item() == 0.0
    assert torch.equal(outputs.grad, torch.zeros(1, 4))  # pyright: ignore[reportArgumentType]
    assert not asked
    assert head(1, torch.ones(1, 4)).item() == 4.0


@pytest.mark.parametrize(
    ("weight", "total", "words"),
    [
        (lambda _targets: 0, 1, r"\[0.0, 0.0\]"),
        (lambda targets: targets.item(), 1, r"\[1.0, -2.0\]"),
        (lambda _targets: math.nan, 1, "nan"),
        (lambda _targets: torch.tensor(math.inf), 1, "inf"),
        # A wrong weight of another replica arrives as a sum that is no number.
        (lambda _targets: 1.0, math.nan, r"\[1.0, 1.0\]"),
    ],
)
def test_weights_that_make_no_mean(weight, total, words):
    with pytest.raises(ValueError, match=f"loss_fn: its micro-batches weigh .*{words}"):
        MeanLoss(
            Weighted(nn.functional.mse_loss, weight),
            torch.tensor([1, -2]),
            2,
            2,
            lambda x: total * x,
        )


class Normed(nn.Module):
    """A loss with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, outputs, targets):
        return nn.functional.mse_loss(self.norm(outputs), targets)


def test_buffers_of_a_loss_move_once_for_each_micro_batch():
    """As in a plain loop over micro-batches, also where the loss is computed again."""
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    states = []
    for checkpoint in ("always", "never", ""):
        torch.manual_seed(0)
        layer, loss = nn.Linear(4, 3), Normed()
        pipe = Pipeline([layer], 1, 2, device="cpu", checkpoint=checkpoint or "never")
        for _ in range(3):
            if not checkpoint:  # a plain loop
                for part in (slice(0, 3), slice(3, 6)):
                    loss(layer(x[part]), y[part])
            else:
                pipe.train_step(x, y, Weighted(loss, len))
        states.append(loss.state_dict())
    for key, value in states[-1].items():
        torch.testing.assert_close(states[0][key], value)
        assert torch.equal(states[0][key], states[1][key])
