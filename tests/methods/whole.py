"""Gradients of a whole model in plain torch, and how those of a method are held against them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.core.layers import build
from repro.models import Model

State = dict[str, Tensor]
N = 9  # neither replicas nor micro-batches get equally many examples
TRANSFORMER = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 64, "T": 8}


def unsplit(model: Model) -> tuple[float, State]:
    """Loss and gradients of the whole mini-batch."""
    device = torch.device("cpu")
    layers = [build(layer, n, 0, device) for n, layer in enumerate(model.layers)]
    whole = nn.Sequential(*layers)
    inputs, targets = model.batch(N, 0)
    loss = model.loss(whole(inputs), targets)
    loss.backward()
    return loss.item(), gradients(whole)


def gradients(module: nn.Module) -> State:
    """Gradients by name; those that are sharded are gathered."""
    found: dict[str, Any] = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {
        name: (grad.full_tensor() if hasattr(grad, "full_tensor") else grad).detach().clone()
        for name, grad in found.items()
    }


def assert_equal_gradients(actual: State, expected: State) -> None:
    """To 1e-5 of the largest gradient."""
    assert actual.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(actual[key], gradient, rtol=0, atol=1e-5 * largest, msg=key)


def assert_of_unsplit(model: Model, loss: float, found: State) -> None:
    expected_loss, expected = unsplit(model)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert_equal_gradients(found, expected)
