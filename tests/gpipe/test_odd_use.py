"""What people do that few think of: each works as without a pipeline, or is refused in one line."""

import pytest
import torch
from examples import WIDTH, batch, frozen_linear, layer, linear
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.comm.message import Forms
from repro.gpipe.core.microbatch import flatten

MSE = nn.functional.mse_loss


def test_a_closed_pipeline_takes_no_step():
    """With gloo it would wait for ever for a thread that has ended."""
    pipe = Pipeline([linear], 1, 2, device="cpu")
    pipe.close()
    pipe.close()
    with pytest.raises(ValueError, match="this Pipeline is closed"):
        pipe.train_step(*batch(), MSE)


@pytest.mark.parametrize("value", [None, {"x": None}])
def test_a_layer_that_returns_no_tensor_is_one_line(value):
    with pytest.raises(
        ValueError, match=r"a layer returned .* at a stage boundary, which holds no"
    ):
        Forms().message(0, *flatten(value), crosses=True)
    pipe = Pipeline([linear, layer(lambda _: value, linear_first=True)], 1, 2, device="cpu")
    for call in (pipe.train_step, pipe.evaluate):
        with pytest.raises(ValueError, match=r"the last layer returned .*, which holds no tensor"):
            call(*batch(), MSE)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(WIDTH), lambda: nn.LazyLinear(WIDTH)])
def test_lazy_layers_cannot_be_counted_and_train_where_they_need_not_be(lazy):
    with pytest.raises(
        ValueError, match=r"layers\[1\].weight: has no shape before .*balance='uniform'"
    ):
        Pipeline([linear, lazy], 1, 2, device="cpu")
    pipe = Pipeline([linear, lazy], 1, 2, device="cpu", balance="uniform")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    losses = [pipe.train_step(*batch(), MSE, optimizer).loss for _ in range(2)]
    assert losses[1] < losses[0]


def test_no_training_in_inference_mode():
    pipe = Pipeline([linear], 1, 2, device="cpu")
    with torch.inference_mode():
        with pytest.raises(ValueError, match="leave that mode"):
            pipe.train_step(*batch(), MSE)
        inside = pipe.evaluate(*batch(), MSE).loss
    assert inside == pipe.evaluate(*batch(), MSE).loss
    assert pipe.train_step(*batch(), MSE).loss == inside


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_loss_without_a_gradient_trains_nothing_in_silence(checkpoint):
    """As torch's backward refuses it; a micro-batch without one, or a frozen model, is fine."""
    pipe = Pipeline([linear], 1, 2, device="cpu", checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"no micro-batch's loss has a gradient"):
        pipe.train_step(*batch(), lambda outputs, targets: MSE(outputs, targets).detach())
    x, y = batch()
    y[:5] = 0.0
    pipe.train_step(
        x, y, lambda outputs, targets: MSE(outputs, targets) if targets.any() else torch.zeros(())
    )
    pipe.evaluate(*batch(), MSE)
    assert all(p.grad is not None for p in pipe.parameters())
    Pipeline([frozen_linear], 1, 2, device="cpu", checkpoint=checkpoint).train_step(*batch(), MSE)


def test_numbers_beside_the_inputs_are_refused():
    """Whole, they would go to each micro-batch, which has a part of the examples."""
    x, y = batch()
    pipe = Pipeline([layer(lambda v: v[0])], 1, 2, device="cpu")
    for beside in (list(range(len(x))), torch.arange(len(x)).numpy()):
        with pytest.raises(ValueError, match="of length 10, the mini-batch, is not cut"):
            pipe.train_step((x, beside), y, MSE)


def test_targets_that_do_not_fit_are_refused():
    x, y = batch()
    pipe = Pipeline([linear], 1, 2, device="cpu")
    with pytest.raises(ValueError, match="targets: 5 examples, but the inputs have 10"):
        pipe.train_step(x, y[:5], MSE)
    with pytest.raises(ValueError, match="targets: None on the last stage, and the loss failed"):
        pipe.train_step(x, None, MSE)


class Scaled(nn.Sequential):
    def forward(self, value):
        return 10 * super().forward(value)


def test_a_sequence_that_computes_something_itself_is_refused():
    with pytest.raises(ValueError, match="Scaled has a forward of its own"):
        Pipeline(Scaled(nn.Linear(2, 2)), 1, 2, device="cpu")
