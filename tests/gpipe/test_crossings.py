"""Any value may cross a boundary: losses and gradients are those of the unsplit model."""

import pytest
import torch
from crossings import CASES, MODELS, batches, everything, loss_of
from torch import nn

from repro.gpipe import launch
from repro.gpipe.core.layers import build


@pytest.fixture(scope="module")
def ran():
    """What three stage processes did, rank by rank."""
    return launch(everything, stages=3)


def unsplit(name):
    """One model in plain torch on whole mini-batches."""
    whole = nn.Sequential(
        *(build(layer, n, 2, torch.device("cpu")) for n, layer in enumerate(MODELS[name]))
    )
    trained = [p for p in whole.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, weight_decay=0.1) if trained else None
    loss_fn, losses, evaluations = loss_of(name), [], []
    for x, y in batches(name):
        if optimizer is not None:
            optimizer.zero_grad()
        loss = loss_fn(whole(x.clone()), y)
        losses.append(loss.item())
        if loss.requires_grad and optimizer is not None:
            loss.backward()
            optimizer.step()
        evaluations.append(loss_fn(whole(x.clone()), y).item())
    return losses, evaluations, {key: p.grad for key, p in whole.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_as_the_unsplit_model(ran, name):
    losses, evaluations, gradients = unsplit(name)
    exact = {}
    for K, checkpoint in CASES:
        key = (name, K, checkpoint)
        assert ran[K - 1][key]["losses"] == pytest.approx(losses, rel=1e-5), key
        assert ran[0][key]["evaluations"] == pytest.approx(evaluations, rel=1e-5), key
        found = {k: v for rank in range(K) for k, v in ran[rank][key]["gradients"].items()}
        assert {k: v is None for k, v in found.items()} == {
            k: v is None for k, v in gradients.items()
        }, key
        for parameter, gradient in gradients.items():
            if gradient is not None:
                torch.testing.assert_close(found[parameter], gradient, rtol=1e-4, atol=1e-6)
                assert torch.equal(
                    found[parameter], exact.setdefault(parameter, found[parameter])
                ), (key, parameter)
