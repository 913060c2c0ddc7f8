"""Sequences of layers: checked, named, counted, and built only where they run."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from repro.gpipe.core.layers import (
    as_layers,
    build,
    names,
    refuse_shared,
    refuse_unfit,
)

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
    lambda: nn.ConvTranspose1d(3, 4, 3, bias=False),
    lambda: nn.BatchNorm2d(3),
    lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False),
    lambda: nn.InstanceNorm1d(3, track_running_stats=True),
    lambda: nn.LayerNorm(3),
    lambda: nn.RMSNorm(3),
    lambda: nn.GroupNorm(1, 3),
    lambda: nn.Embedding(5, 4, padding_idx=0),
    lambda: nn.PReLU(3),
    lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True),
    lambda: nn.MultiheadAttention(4, 2),
    lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
    lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Sequential(nn.Linear(2, 2))
    ),
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


class Bare(nn.Module):
    """A parameter, and nothing that would initialise it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))


class Forgetful(Bare):
    """Initialises only what `own` names; a float, an integer and a boolean are left out in turn."""

    ids: torch.Tensor
    mask: torch.Tensor

    def __init__(self, own):
        super().__init__()
        self.own = own
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
            Bare,
            r"layers\[2\].scale: on the meta device, and Bare has no reset_parameters\(\) without "
            "arguments; give a",
        ),
        (
            lambda: nn.Sequential(nn.ReLU(), Bare()),
            r"layers\[2\].1.scale: on the meta device, and Bare has no",
        ),
        (
            lambda: Forgetful(["ids", "mask"]),
            r"layers\[2\].scale: on the meta device, and Forgetful leaves it unset",
        ),
        (
            lambda: Forgetful(["scale", "mask"]),
            r"layers\[2\].ids: on the meta device, and Forgetful leaves it unset",
        ),
        (
            lambda: nn.Sequential(Forgetful(["scale", "ids"])),
            r"layers\[2\].0.mask: .* Forgetful leaves it unset",
        ),
        (
            lambda: nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
            r"layers\[2\].parametrizations.weight.orig",
        ),
    ],
)
def test_what_cannot_initialise_itself_is_refused(factory, words):
    with pytest.raises(ValueError, match=words) as caught:
        build(meta(factory), 2, 0, CPU)
    assert "give a factory instead" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [5, "layers", [], [nn.ReLU(), 3], {"a": nn.ReLU()}, nn.Linear(2, 2)]
)
def test_no_sequence_of_layers(wrong):
    for function in (as_layers, names):
        with pytest.raises(
            ValueError, match=r"layers: expected an nn.Sequential or a sequence of modules or fact"
        ):
            function(wrong)


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


def test_shared_parameters_across_stages():
    tied = nn.Linear(2, 2)
    refuse_shared([tied, tied, nn.ReLU()], [2, 1])
    with pytest.raises(ValueError, match=r"layers\[2\].weight: shared by stages 0 and 1"):
        refuse_shared([tied, nn.ReLU(), tied], [2, 1])


def test_sync_batchnorm_is_refused():
    refuse_unfit(nn.Sequential(nn.BatchNorm1d(2)), 4, 2, 1)
    with pytest.raises(
        ValueError, match=r"layers\[4\]: SyncBatchNorm would wait .* use nn.BatchNorm1d"
    ):
        refuse_unfit(nn.SyncBatchNorm(2), 4, 2, 1)
    wrapped = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(ValueError, match=r"layers\[4\]: DistributedDataParallel would wait"):
        refuse_unfit(wrapped, 4, 2, 1)
    with pytest.raises(ValueError, match=r"layers\[4\].1.0: SyncBatchNorm"):
        refuse_unfit(nn.Sequential(nn.ReLU(), nn.Sequential(nn.SyncBatchNorm(2))), 4, 2, 1)
