from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.models import Model, build

SMALL = {"L": 3, "D": 16, "image": 64, "num_classes": 10, "dropout": 0.0}


def parameters(model: Model) -> int:
    with torch.device("meta"):
        return sum(p.numel() for factory in model.layers for p in factory().parameters())


def made(model: Model) -> list[nn.Module]:
    torch.manual_seed(0)
    return [factory() for factory in model.layers]


def shapes(value) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in ((value,) if isinstance(value, Tensor) else value)]


@pytest.mark.parametrize(
    ("L", "D", "plain", "auxiliary"),
    [
        (18, 208, 81_140_766, 81_785_166),
        (18, 416, 317_548_353, 318_277_617),
        (18, 544, 540_204_945, 540_986_433),
        (36, 544, 1_053_302_481, 1_054_083_969),
    ],
)
def test_parameters_of_amoebanet_d(L, D, plain, auxiliary):
    assert parameters(build("amoebanet-d", L=L, D=D)) == plain
    assert parameters(build("amoebanet-d", L=L, D=D, aux_head=True)) == auxiliary


def test_parameters_of_amoebanet_b_round_to_557_3_million():
    assert round(parameters(build("amoebanet-b", L=18, D=512)) / 1e6, 1) == 557.3


def test_parameters_do_not_depend_on_the_image_size_without_auxiliary_head():
    assert parameters(build("amoebanet-d", L=18, D=208, image=96)) == 81_140_766


def test_layers_and_boundaries_of_table_2s_model():
    model = build("amoebanet-d")
    assert len(model.layers) == 24
    assert len(build("amoebanet-d", aux_head=True).layers) == 25
    with torch.device("meta"):
        value = torch.empty(1, 3, 224, 224)
        seen = []
        for factory in model.layers:
            value = factory()(value)
            seen.append(shapes(value))
    heights = [111, 56, 28] + 6 * [28] + 7 * [14] + 7 * [7]
    channels = [32, 192, 384] + 6 * [1024] + [1536] + 6 * [2048] + [3072] + 6 * [4096]
    assert [s[0] for s in seen[:-1]] == [
        (1, c, h, h) for c, h in zip(channels, heights, strict=True)
    ]
    for before, after in pairwise(seen[:-1]):
        assert after[1] == before[0]  # the skip is the input
    assert seen[-1] == [(1, 1001)]


# cells of 32 channels that are not the first, and 32 filters
@pytest.mark.parametrize("D", [8, 16, 64, 128])
@pytest.mark.parametrize("name", ["amoebanet-d", "amoebanet-b"])
@pytest.mark.parametrize("image", [16, 24, 32, 45])
def test_any_width_and_image_size(name, D, image):
    with torch.device("meta"):
        value = torch.empty(2, 3, image, image + 9)
        for factory in build(name, L=3, D=D, image=image).layers:
            value = factory()(value)
    assert value.shape == (2, 1001)


def test_auxiliary_logits_ride_to_the_head_and_join_the_loss():
    model = build("amoebanet-d", **SMALL, aux_head=True)
    layers = made(model)
    inputs, targets = model.batch(4, 0)
    value, lengths = inputs, []
    for layer in layers:
        value = layer(value)
        lengths.append(len(value))
    assert lengths == [2] * 6 + [3] * 3 + [2]
    logits, auxiliary = value
    cross_entropy = nn.functional.cross_entropy
    expected = cross_entropy(logits, targets) + 0.4 * cross_entropy(auxiliary, targets)
    assert model.loss(value, targets) == expected
    model.loss(value, targets).backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0
        for layer in layers
        for p in layer.parameters()
    )


def test_evaluation_gives_logits_alone():
    layers = made(build("amoebanet-d", **SMALL, aux_head=True))
    value = torch.randn(1, 3, 64, 64)
    for layer in layers:
        value = layer.eval()(value)
    assert shapes(value) == [(1, 10)]


@pytest.mark.parametrize("name", ["amoebanet-d", "amoebanet-b"])
def test_gradients_are_the_same_when_cut_between_all_layers(name):
    model = build(name, **SMALL, aux_head=True)
    inputs, targets = model.batch(2, 0)
    layers = made(model)

    value = inputs
    for layer in layers:
        value = layer(value)
    model.loss(value, targets).backward()
    whole = [p.grad for layer in layers for p in layer.parameters()]

    layers = made(model)
    arrived: list[Any] = []
    sent: list[Any] = []
    boundary: Any = (inputs,)
    for layer in layers:
        leaves = [t.detach().requires_grad_() for t in boundary]
        boundary = layer(tuple(leaves) if len(leaves) > 1 else leaves[0])
        arrived.append(leaves)
        sent.append(boundary)
    model.loss(sent.pop(), targets).backward()
    for outputs, leaves in zip(reversed(sent), reversed(arrived), strict=False):
        pairs = [
            (t, leaf.grad) for t, leaf in zip(outputs, leaves, strict=True) if leaf.grad is not None
        ]
        torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
    for a, b in zip(whole, [p.grad for layer in layers for p in layer.parameters()], strict=True):
        torch.testing.assert_close(a, b)


def test_first_loss_is_near_that_of_guessing():
    model = build("amoebanet-d", **SMALL)
    inputs, targets = model.batch(32, 0)
    value = inputs
    for layer in made(model):
        value = layer(value)
    assert 1.5 < model.loss(value, targets) < 4.5  # ln 10 = 2.3


def test_learns_the_digits_of_one_batch():
    model = build("amoebanet-d", **{**SMALL, "image": 32})
    network = nn.Sequential(*made(model))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.9)
    inputs, targets = model.batch(16, 0)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = model.loss(network(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("image", [16, 24])
@pytest.mark.parametrize("classes", [5, 10])
def test_the_smallest_models_train_every_parameter(image, classes):
    model = build("amoebanet-b", L=3, D=8, image=image, num_classes=classes, aux_head=True)
    inputs, targets = model.batch(20, 0)
    assert targets.unique().tolist() == list(range(classes))
    layers = made(model)
    model.loss(nn.Sequential(*layers)(inputs), targets).backward()
    assert all(p.grad is not None for layer in layers for p in layer.parameters())


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("L", 4, "multiple of 3"),
        ("L", 0, "try L=3"),
        ("D", 18, "multiple of 4"),
        ("D", 4, "from 8 up"),
        ("image", 15, "from 16 up"),
        ("num_classes", 1, "2 or more"),
        ("dropout", 1.0, r"\[0, 1\)"),
        ("bn_momentum", 0, r"\(0, 1\]"),
    ],
)
def test_bad_sizes_are_one_line_errors(argument, value, words):
    with pytest.raises(ValueError, match=f"^{argument}={value}: .*{words}.*$"):
        build("amoebanet-d", **{argument: value})
