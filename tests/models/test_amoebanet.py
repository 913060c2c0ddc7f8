from itertools import pairwise

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
        (36, 544, 1_053_302_481, 1_054_083_969),
    ],
)
def test_parameters_of_amoebanet_d(L, D, plain, auxiliary):
    assert parameters(build("amoebanet-d", L=L, D=D)) == plain
    assert parameters(build("amoebanet-d", L=L, D=D, aux_head=True)) == auxiliary


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


@pytest.mark.parametrize("D", [8, 64])
@pytest.mark.parametrize("name", ["amoebanet-d", "amoebanet-b"])
@pytest.mark.parametrize("image", [16, 45])
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


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("L", 4, "multiple of 3"),
        ("L", 0, "equal to 1; try L=18"),
        ("D", 18, "multiple of 4"),
        ("D", 4, "equal to 8"),
        ("image", 15, "equal to 16"),
        ("num_classes", 1, "equal to 2"),
        ("dropout", 1.0, "less than 1"),
        ("bn_momentum", 0, "greater than 0"),
    ],
)
def test_bad_sizes_are_one_line_errors(argument, value, words):
    with pytest.raises(ValueError, match=f"^{argument}={value}: .*{words}.*$"):
        build("amoebanet-d", **{argument: value})
