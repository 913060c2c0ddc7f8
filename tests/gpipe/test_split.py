"""I and W have the bits of the whole backward; tests/gpipe/test_compare.py trains with them."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import pytest
import torch
from examples import Apply
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.gpipe.core.split import backward_to_inputs, backward_to_weights

SHARED = nn.Linear(4, 4)
Backward = Callable[[Tensor, Tensor, Tensor], Any]  # of an output, its gradient, and the input


def gradients(model: nn.Module, x: Tensor, backward: Backward, region: Any) -> list[Tensor | None]:
    """Of the input and the parameters, after two micro-batches."""
    model.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    for _ in range(2):
        torch.manual_seed(1)
        with region:
            y = model(x)
        backward(y, y.detach().cumsum(-1) / 7, x)
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def at_once(y: Tensor, gradient: Tensor, _x: Tensor) -> None:
    y.backward(gradient)


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)


def convolutions() -> list[nn.Module]:
    return [
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
    ]


def hooked() -> nn.Module:
    """Hooks of a parameter, and of what an operator of W returns."""
    layer = nn.Linear(4, 4)
    layer.weight.register_hook(lambda gradient: 2 * gradient)
    return nn.Sequential(layer, Apply(lambda y: (y.register_hook(lambda g: 3 * g), y)[1]))


def recomputed(*, reentrant: bool) -> nn.Module:
    inner = nn.Linear(4, 4)
    return nn.Sequential(inner, Apply(lambda x: checkpoint(inner, x, use_reentrant=reentrant)))


PAIRS = torch.randn(3, 4)
IMAGES = torch.randn(4, 3, 9, 9)
WORDS = torch.randn(3, 5, 8)


@pytest.mark.parametrize(
    ("layers", "x", "weights"),
    [
        ([nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)], PAIRS, 2),
        ([nn.Linear(4, 4, bias=False)], PAIRS, 1),  # behind which I needs nothing
        ([Apply(lambda x: x.t()), nn.Linear(3, 2)], PAIRS, 1),
        ([nn.Linear(4, 4).double()], PAIRS.double(), 1),
        ([encoder(), encoder()], WORDS, 8),
        (convolutions(), IMAGES, 5),  # one of them is a bias
        ([hooked()], PAIRS, 1),
        ([nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)], PAIRS, 1),
        # left in I
        ([SHARED, nn.ReLU(), SHARED], PAIRS, 0),
        ([recomputed(reentrant=True)], PAIRS, 0),
        ([recomputed(reentrant=False)], PAIRS, 0),
        ([nn.Embedding(3, 4)], torch.tensor([0, 2, 2]), 0),
        ([nn.LSTM(4, 4), Apply(lambda y: y[0])], PAIRS, 0),
    ],
)
def test_i_and_w_have_the_bits_of_the_whole_backward(layers, x, weights):
    left = set[Tensor]()

    def in_two(y: Tensor, gradient: Tensor, x: Tensor) -> None:
        later = backward_to_inputs([y], [gradient], [x])
        left.update(weight.leaf for part, _ in later for weight in part.weights)
        sent = [] if x.grad is None else [x.grad.clone()]
        backward_to_weights(later)
        assert all(torch.equal(each, x.grad) for each in sent if x.grad is not None)

    model = nn.Sequential(*layers)
    low = [torch.autocast("cpu", torch.bfloat16)] if x.dtype == torch.float32 else []
    for region, given in product([nullcontext(), *low], {False, x.is_floating_point()}):
        x = x.detach().requires_grad_(given)
        expected = gradients(model, x, at_once, region)
        for mine, theirs in zip(gradients(model, x, in_two, region), expected, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None and theirs is not None:
                assert torch.equal(mine, theirs)
                assert mine.stride() == theirs.stride()
    assert len(left) == weights
