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
def test_every_model_trains_on_its_own_data_and_its_loss_is_a_mean(name):
    """Over examples, or over what the loss says: micro-batches' losses make the mini-batch's."""
    model = build(name, **SMALL[name])
    assert model.name == name
    inputs, targets = model.batch(4, 5)
    assert batch_size(inputs) == len(targets) == 4
    again, _ = model.batch(4, 5)
    assert all(map(torch.equal, flatten(inputs)[0], flatten(again)[0]))
    value = inputs
    for factory in model.layers:
        value = factory()(value)
    loss = model.loss(value, targets)
    loss.backward()
    assert loss.ndim == 0
    assert loss.isfinite()
    weight = model.loss.weight if isinstance(model.loss, Weighted) else len
    total = 0.0
    for part in (slice(0, 1), slice(1, 4)):
        outputs = map_leaves(Tensor, lambda tensor, part=part: tensor[part], value)
        share = weight(targets[part]) / weight(targets)
        total += model.loss(outputs, targets[part]) * share
    torch.testing.assert_close(loss, total)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("amoebanet-c", {}, "^model='amoebanet-c': .*timm:.*import:.*did you mean 'amoebanet-"),
        ("resnet50", {}, "^model='resnet50': .*did you mean 'timm:resnet50'"),
        ("amoebanet-d", {"imgae": 64}, "^imgae=64: .*allowed are L, D, image.*mean 'image'"),
        ("amoebanet-d", {"variant": "b"}, "^variant='b': .*no such argument"),
        ("amoebanet-d", {"L": "18"}, "^L='18': .*integer; try L=18"),
        ("amoebanet-d", {"L": 4}, "^L=4: .*multiple of 3"),
        ("transformer", {"d": 30, "heads": 4}, "^d=30: .*a multiple of 4 .*; try d=32"),
        ("transformer", {"attention": "flash"}, "^attention='flash': .*'plain' or 'fused'"),
        ("timed", {"L": 3, "forward_s": [0.1, 0.2]}, r"^forward_s=\[0.1, 0.2\]: .*L=3 numbers"),
        ("timm:resnet50", {"depth": 3}, "^depth=3: .*allowed are image, num_classes"),
    ],
)
def test_a_mistake_is_a_one_line_error(name, arguments, words):
    with pytest.raises(ValueError, match=f"{words}.*$"):
        build(name, **arguments)
