"""Sequences of layers: checked, named, counted, and built only where they run."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from repro.gpipe.core.layers import as_layers, build, names, refuse_shared, refuse_unfit

CPU = torch.device("cpu")


def meta(factory):
    with torch.device("meta"):
        return factory()


def test_factories_are_initialised_by_seed_and_layer():
    def factory():
        return nn.Linear(4, 4)

    pairs = ((0, 0), (0, 0), (1, 0), (0, 1))
    for layer in (factory, meta(factory)):
        weights = [build(layer, index, seed, CPU).state_dict()["weight"] for index, seed in pairs]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])
        assert not torch.equal(weights[0], weights[3])


FACTORIES = [
    lambda: nn.Linear(3, 4),
    lambda: nn.Conv2d(3, 4, 3),
    lambda: nn.BatchNorm2d(3),
    lambda: nn.InstanceNorm1d(3, track_running_stats=True),
    lambda: nn.Embedding(5, 4, padding_idx=0),
    lambda: nn.PReLU(3),
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
    lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    lambda: nn.Linear(3, 4).half(),
]


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_layer_on_the_meta_device_is_what_a_factory_makes(factory):
    """To the bit: torch's constructors draw in the order in which submodules are reset."""
    layer = meta(factory)
    state = torch.get_rng_state()
    made, expected = build(layer, 3, 7, CPU), build(factory, 3, 7, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(t.is_meta for t in layer.state_dict().values()), "the user's stays as it is"
    assert made.state_dict().keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert tensor.dtype == made.state_dict()[name].dtype
        assert torch.equal(made.state_dict()[name], tensor), name


class Forgetful(nn.Module):
    """Initialises only what `own` names: a float, an integer or a boolean is left out."""

    ids: torch.Tensor
    mask: torch.Tensor

    def __init__(self, own):
        super().__init__()
        self.own = own
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("ids", torch.arange(3))
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)

    def reset_parameters(self):
        if "scale" in self.own:
            nn.init.ones_(self.scale)
        if "ids" in self.own:
            self.ids.copy_(torch.arange(3))
        if "mask" in self.own:
            self.mask = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            lambda: nn.Sequential(
                nn.ReLU(), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
            ),
            r"layers\[2\].1.parametrizations.weight.orig.* cannot reset it",
        ),
        (lambda: Forgetful(["ids", "mask"]), r"layers\[2\].scale: .* Forgetful leaves it unset"),
        (lambda: Forgetful(["scale", "mask"]), r"layers\[2\].ids: .* Forgetful leaves it unset"),
        (
            lambda: nn.Sequential(Forgetful(["scale", "ids"])),
            r"layers\[2\].0.mask: .* Forgetful leaves it unset",
        ),
    ],
)
def test_what_cannot_initialise_itself_is_refused(factory, words):
    with pytest.raises(ValueError, match=words) as caught:
        build(meta(factory), 2, 0, CPU)
    assert "give a factory instead" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [5, "layers", [], [nn.ReLU(), 3], {"a": nn.ReLU()}])
def test_no_sequence_of_layers(wrong):
    with pytest.raises(ValueError, match="layers: expected an nn"):
        names(wrong)


def test_names_are_those_of_the_unsplit_model():
    relu = nn.ReLU()
    block = nn.Sequential(nn.Linear(2, 2), relu)
    model = nn.Sequential(OrderedDict(stem=nn.Linear(2, 2), first=relu, block=block, again=relu))
    assert names(model) == ["stem", "first", "block", "again"]
    assert len(as_layers(model)) == 4
    keys = [
        f"{name}.{key}"
        for name, layer in zip(names(model), model, strict=True)
        for key in layer.state_dict()
    ]
    assert keys == list(model.state_dict())
    assert names(nn.Sequential(relu, relu)) == ["0", "1"]
    assert names(nn.ModuleList([relu, block])) == names([relu, nn.ReLU]) == ["0", "1"]


def test_what_is_shared_lies_within_one_stage():
    tied = nn.Linear(2, 2)
    refuse_shared([tied, tied, nn.ReLU()], [2, 1])
    with pytest.raises(ValueError, match=r"layers\[2\].weight: shared by stages 0 and 1"):
        refuse_shared([tied, nn.ReLU(), tied], [2, 1])
    on_meta = meta(lambda: nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"layers\[1\].weight: on the meta device and shared"):
        refuse_shared([on_meta, on_meta], [2])


def test_what_would_wait_for_other_stages_is_refused():
    refuse_unfit(nn.Sequential(nn.BatchNorm1d(2)), 4, 2, 1)
    with pytest.raises(
        ValueError, match=r"layers\[4\].1: SyncBatchNorm would wait .* use nn.Batch"
    ):
        refuse_unfit(nn.Sequential(nn.ReLU(), nn.SyncBatchNorm(2)), 4, 2, 1)
