"""Each model gives the same gradients cut into two stages as in one piece with plain PyTorch."""

from functools import partial

import pytest
import torch
from pipelined import MODELS, M, N, batch, doubled, everything
from torch import nn

from repro.gpipe import launch
from repro.gpipe.core import layers as gpipe_layers
from repro.gpipe.core.loss import Weighted
from repro.gpipe.core.microbatch import split
from repro.models import build


@pytest.fixture(scope="module")
def ran():
    """Both ranks' results."""
    return launch(everything, stages=2)


@pytest.mark.parametrize("name", MODELS)
def test_pipelined_as_not(ran, name):
    model = build(name, **MODELS[name])
    inputs, targets = batch(model, N)
    layers = [partial(doubled, layer) for layer in model.layers]
    whole = nn.Sequential(
        *(gpipe_layers.build(f, n, 1, torch.device("cpu")) for n, f in enumerate(layers))
    )
    weight = model.loss.weight if isinstance(model.loss, Weighted) else len
    total = 0.0
    for x, y in zip(split(inputs, M), split(targets, M), strict=True):
        loss = model.loss(whole(x), y) * (weight(y) / weight(targets))
        loss.backward()
        total += loss.item()
    assert ran[0][name]["loss"] == pytest.approx(total, rel=1e-5)
    gradients = ran[0][name]["gradients"] | ran[1][name]["gradients"]
    assert gradients.keys() == {n for n, _ in whole.named_parameters()}
    for key, parameter in whole.named_parameters():
        assert (gradients[key] is None) == (parameter.grad is None), key
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-4, atol=1e-6)
