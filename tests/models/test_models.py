import pytest
import torch
from pipelined import MODELS, cut_in_two, whole

from repro.gpipe import Pipeline, launch
from repro.gpipe.tree import batch_size, flatten
from repro.models import build

pytestmark = pytest.mark.timeout(180)  # one launch trains every model
SMALL = {
    **MODELS,
    "amoebanet-b": MODELS["amoebanet-d"],
    "timed": {"L": 2, "forward_s": 0.0, "backward_s": 0.0},
}


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        ("amoebanet-d", {"L": 18, "D": 208}, 81_140_766),
        ("amoebanet-d", {"L": 36, "D": 544}, 1_053_302_481),
        ("transformer", {"L": 13}, 131_104_000 + 50_358_272 * 13),
        ("unet", {"B": 6, "C": 72}, 362_157_516),  # torchgpipe publishes 362.2M
    ],
)
def test_parameters_of_table_1_and_of_torchgpipe_s_u_net(name, sizes, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in whole(name, **sizes).parameters()) == count


@pytest.mark.parametrize("name", SMALL)
def test_every_model_trains_on_its_own_data_and_its_loss_is_a_mean(name):
    """A loss that is no mean over examples, or over what it says, is refused."""
    model = build(name, **SMALL[name])
    assert model.name == name
    inputs, targets = model.batch(5, 7)
    assert batch_size(inputs) == len(targets) == 5
    again, _ = model.batch(5, 7)
    assert all(map(torch.equal, flatten(inputs)[0], flatten(again)[0]))
    Pipeline(model.layers, 1, 2, device="cpu").train_step(inputs, targets, model.loss)


@pytest.fixture(scope="module")
def comparisons():
    """Of every model cut into two stages."""
    return launch(cut_in_two, stages=2)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_cut_in_two_trains_as_in_one_piece(comparisons, name):
    assert comparisons[name].verdict != "different", comparisons[name]


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("amoebanet-c", {}, "^model='amoebanet-c': .*timm:.*import:.*did you mean 'amoebanet-"),
        ("resnet50", {}, "^model='resnet50': .*did you mean 'timm:resnet50'"),
        ("amoebanet-d", {"imgae": 64}, "^imgae=64: .*allowed are L, D, image.*mean 'image'"),
        ("amoebanet-d", {"variant": "b"}, "^variant='b': .*no such argument"),
        ("amoebanet-d", {"L": 4}, "^L=4: .*multiple of 3"),
        ("transformer", {"d": 30, "heads": 4}, "^d=30: .*a multiple of 4 .*; try d=32"),
        ("timm:resnet50", {"depth": 3}, "^depth=3: .*allowed are image, num_classes"),
    ],
)
def test_a_mistake_is_a_one_line_error(name, arguments, words):
    with pytest.raises(ValueError, match=f"{words}.*$"):
        build(name, **arguments)
