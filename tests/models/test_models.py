import pytest
import torch
from torch import Tensor

from repro.gpipe.core.loss import Weighted
from repro.gpipe.core.microbatch import batch_size, flatten, map_leaves
from repro.models import build

SMALL = {
    "amoebanet-b": {"L": 3, "D": 16, "image": 64},
    "amoebanet-d": {"L": 3, "D": 16, "image": 64},
    "transformer": {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 32, "T": 8},
    "translation": {"L": 1, "d": 16, "H": 32, "A": 2, "head_dim": 4, "V": 32, "S": 8, "T": 9},
    "timed": {"L": 2, "forward_s": 0.0, "backward_s": 0.0},
    "timm:resnet18": {"image": 33},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_model_trains_on_its_own_data_one_value_from_layer_to_layer(name):
    model = build(name, **SMALL[name])
    assert model.name == name
    inputs, targets = model.batch(3, 5)
    assert batch_size(inputs) == len(targets) == 3
    again, _ = model.batch(3, 5)
    assert all(map(torch.equal, flatten(inputs)[0], flatten(again)[0]))
    value = inputs
    for factory in model.layers:
        value = factory()(value)
    loss = model.loss(value, targets)
    loss.backward()
    assert loss.ndim == 0
    assert loss.isfinite()


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_is_a_mean_over_examples_or_says_over_what(name):
    # So that the mini-batch's loss is the weighted mean of the micro-batches' losses.
    model = build(name, **SMALL[name])
    inputs, targets = model.batch(4, 0)
    value = inputs
    for factory in model.layers:
        torch.manual_seed(0)
        value = factory().eval()(value)
    weight = model.loss.weight if isinstance(model.loss, Weighted) else len
    total = 0.0
    for part in (slice(0, 1), slice(1, 4)):
        outputs = map_leaves(Tensor, lambda tensor, part=part: tensor[part], value)
        share = weight(targets[part]) / weight(targets)
        total += model.loss(outputs, targets[part]) * share
    torch.testing.assert_close(model.loss(value, targets), total)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("amoebanet-c", {}, "^model='amoebanet-c': .*timm:.*import:.*did you mean 'amoebanet-"),
        ("nonsense", {}, "^model='nonsense': allowed are amoebanet-b"),
        (
            "amoebanet-d",
            {"imgae": 64},
            r"^imgae=64: .*allowed are L, D, image.*did you mean 'image'\?",
        ),
        ("amoebanet-d", {"variant": "b"}, "^variant='b': .*no such argument"),
        ("amoebanet-d", {"L": "18"}, "^L='18': .*integer; try L=18"),
        ("amoebanet-d", {"L": True}, "^L=True: .*integer"),
        ("amoebanet-d", {"aux_head": 1}, "^aux_head=1: .*boolean"),
        ("transformer", {"dropout": "much"}, "^dropout='much': .*number"),
        ("timed", {"L": 10**9}, "^L=1000000000: .*less than or equal to 65536"),
        ("timm:vit_tiny_patch16_224", {"image": 10**12}, "^image=10+: .*equal to 16384"),
        ("timm:resnet50", {"depth": 3}, "^depth=3: .*allowed are image, num_classes"),
    ],
)
def test_a_mistake_is_a_one_line_error(name, arguments, words):
    with pytest.raises(ValueError, match=f"{words}.*$"):
        build(name, **arguments)
