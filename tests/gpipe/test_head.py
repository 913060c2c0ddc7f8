"""The loss of a mini-batch: what its micro-batches weigh, and what is refused."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core.loss import Head

PAD, CLASSES = 0, 5


def token_loss(outputs, targets):
    """Mean over the tokens that are not padding, NaN if all are."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PAD)


TOKENS = Weighted(token_loss, lambda targets: (targets != PAD).sum())


def batch():
    """Ten sequences of four tokens with padding; of M=4 the second has only padding."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(10, 4, 6, generator=generator)
    targets = torch.randint(1, CLASSES, (10, 4), generator=generator)
    targets[3:6] = PAD
    targets[6, 1:] = PAD
    return inputs, targets


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
@pytest.mark.parametrize("m", [1, 4, 10])
def test_weights_make_the_mean_of_the_mini_batch(m, checkpoint):
    pipe = Pipeline([lambda: nn.Linear(6, CLASSES)], 1, m, checkpoint=checkpoint, device="cpu")
    inputs, targets = batch()
    result = pipe.train_step(inputs, targets, TOKENS)
    found = [p.grad for p in pipe.parameters()]
    wanted = token_loss(pipe.module(inputs), targets)
    gradients = torch.autograd.grad(wanted, list(pipe.parameters()))
    assert result.loss == pytest.approx(wanted.item(), rel=1e-6)
    torch.testing.assert_close(found, [*gradients])
    evaluation = pipe.evaluate(inputs, targets, TOKENS)
    assert evaluation.loss == pytest.approx(wanted.item(), rel=1e-6)
    assert tuple(evaluation.outputs.shape) == (10, 4, CLASSES)  # pyright: ignore[reportOptionalMemberAccess]
    if m > 1:
        unweighted = pipe.evaluate(*batch(), lambda o, t: token_loss(o, t).nan_to_num()).loss
        assert unweighted != pytest.approx(wanted.item(), rel=1e-2)


def test_numbers_of_examples_weigh_otherwise():
    inputs, targets = torch.arange(10.0)[:, None], torch.zeros(10, 1)
    pipe = Pipeline([nn.Identity()], 1, 4, device="cpu")
    assert pipe.train_step(inputs, targets, nn.functional.l1_loss).loss == pytest.approx(4.5)


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
    with pytest.raises(
        ValueError, match='reduction="sum", and the losses of the micro-batches are'
    ):
        Pipeline([nn.Identity()], 1, 4, device="cpu").evaluate(*data, loss)
    assert Pipeline([nn.Identity()], 1, 1, device="cpu").evaluate(*data, loss).loss == 140.0


def test_what_weighs_nothing_is_not_asked_for_and_spoils_nothing():
    """Its outputs may be NaN: an attention over padding alone."""
    asked = []

    def loss(outputs, _targets):
        asked.append(outputs)
        return outputs.sum()

    head = Head(Weighted(loss, lambda t: t[0]), torch.tensor([0, 4]), 2, 2, lambda total: total)
    outputs = torch.tensor([[math.nan, math.inf, 1e38, 1e38]], requires_grad=True)
    share = head(0, (torch.tensor([1]), {"logits": outputs}))
    share.backward()
    assert share.item() == 0.0
    assert torch.equal(outputs.grad, torch.zeros(1, 4))  # pyright: ignore[reportArgumentType]
    assert not asked
    assert head(1, torch.ones(1, 4)).item() == 4.0


def refusal(weight, total=lambda number: number):
    with pytest.raises(ValueError, match="loss_fn: its micro-batches weigh") as caught:
        Head(Weighted(token_loss, weight), torch.tensor([1, -2]), 2, 2, total)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_make_no_mean():
    assert "[0.0, 0.0]" in refusal(lambda _targets: 0)
    assert "[1.0, -2.0]" in refusal(lambda targets: targets.item())
    assert "nan" in refusal(lambda _targets: math.nan)
    assert "inf" in refusal(lambda _targets: torch.tensor(math.inf))


@pytest.mark.parametrize("weight", [None, torch.ones(2), "many"])
def test_a_weight_is_one_number(weight):
    with pytest.raises(ValueError, match=r"weigh \[nan, nan\]; each weight must be finite"):
        Head(
            Weighted(token_loss, lambda _targets: weight),
            torch.tensor([1, 2]),
            2,
            2,
            lambda total: total,
        )


def test_every_replica_refuses_what_one_does():
    """A wrong weight elsewhere arrives as a sum that is no number."""
    told = []
    refusal(lambda targets: targets.item(), lambda number: told.append(number) or number)
    assert math.isnan(told[0])
    refusal(lambda _targets: 1.0, lambda _number: math.nan)


@pytest.mark.parametrize("outputs", [lambda o, t: o - t, lambda _o, _t: 3.0])
def test_a_loss_is_one_number(outputs):
    pipe = Pipeline([nn.Identity()], 1, 2, device="cpu")
    with pytest.raises(ValueError, match=r"loss_fn: returned .*needed is one number") as caught:
        pipe.train_step(torch.zeros(4, 2), torch.zeros(4, 2), outputs)
    assert "\n" not in str(caught.value)


def test_targets_fit_the_inputs():
    pipe = Pipeline([nn.Identity()], 1, 2, device="cpu")
    with pytest.raises(ValueError, match="targets: 3 examples, but the inputs have 4"):
        pipe.train_step(torch.zeros(4, 2), torch.zeros(3, 2), nn.functional.mse_loss)


class Scaled(nn.Module):
    """A loss with a learnt temperature, a buffer that may change, and a fixed network."""

    centre: torch.Tensor

    def __init__(self, *, learns: bool = False, moves: bool = False) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(())) if learns else 1.0
        self.register_buffer("centre", torch.zeros(3))
        self.teacher = nn.Linear(3, 3)
        self.moves = moves

    def forward(self, outputs, targets):
        if self.moves:
            self.centre.mul_(0.5).add_(outputs.detach().mean(0))
        with torch.no_grad():
            targets = targets + self.teacher(targets)
        return nn.functional.mse_loss(outputs * self.temperature, targets - self.centre)


class Normed(nn.Module):
    """A loss with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, affine=False)

    def forward(self, outputs, targets):
        return nn.functional.mse_loss(self.norm(outputs), targets)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_loss_that_is_trained_is_refused(checkpoint):
    pipe = Pipeline([nn.Linear(4, 3)], 1, 2, device="cpu", checkpoint=checkpoint)
    loss = Scaled(learns=True)
    with pytest.raises(ValueError, match=r"^a layer or the loss uses a tensor of shape \(\)"):
        pipe.train_step(torch.randn(6, 4), torch.randn(6, 3), loss)
    assert all(p.grad is None for p in [*loss.parameters(), *pipe.parameters()])
    pipe.evaluate(torch.randn(6, 4), torch.randn(6, 3), loss)


def test_a_penalty_that_comes_later_is_refused_too():
    pipe = Pipeline([nn.Linear(4, 3)], 1, 2, device="cpu")
    x, y, other = torch.randn(6, 4), torch.randn(6, 3), torch.ones(2, requires_grad=True)
    pipe.train_step(x, y, nn.functional.mse_loss)
    with pytest.raises(ValueError, match=r"a tensor of shape \(2,\)"):
        pipe.train_step(x, y, lambda o, t: nn.functional.mse_loss(o, t) + other.sum())


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: Weighted(loss, len)])
@pytest.mark.parametrize("kind", [lambda: Scaled(moves=True), Normed])
def test_buffers_of_a_loss_move_once_for_each_micro_batch(kind, wrap):
    """As in a plain loop over micro-batches, also where the loss is computed again."""
    x, y = torch.randn(6, 4), torch.randn(6, 3)
    states = []
    for checkpoint in ("always", "never", "plain loop"):
        torch.manual_seed(0)
        layer, loss = nn.Linear(4, 3), kind()
        if checkpoint == "plain loop":
            for _ in range(3):
                for i in range(2):
                    loss(layer(x[3 * i : 3 * i + 3]), y[3 * i : 3 * i + 3])
        else:
            pipe = Pipeline([layer], 1, 2, device="cpu", checkpoint=checkpoint)
            for _ in range(3):
                pipe.train_step(x, y, wrap(loss))
        states.append(loss.state_dict())
    for key, value in states[-1].items():
        torch.testing.assert_close(states[0][key], value)
        assert torch.equal(states[0][key], states[1][key])


def test_a_loss_that_is_a_module_and_stays_as_it_is_trains():
    """Class weights, a frozen network, and a parameter of the stage do no harm."""
    pipe = Pipeline([nn.Linear(4, 3)], 1, 2, device="cpu")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    entropy = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    plain = Scaled()
    plain.own = pipe.module[0]
    losses = [
        pipe.train_step(torch.ones(6, 4), torch.arange(6) % 3, entropy, optimizer).loss
        for _ in range(3)
    ]
    assert losses[0] > losses[-1]
    losses = [
        pipe.train_step(torch.ones(6, 4), torch.ones(6, 3), plain, optimizer).loss for _ in range(3)
    ]
    assert losses[0] > losses[-1]
