"""Sequences of layers: checked, named, counted, and built only where they run."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from repro.gpipe.core.layers import (
    as_layers,
    build,
    names,
    parameter_counts,
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


def test_a_built_layer_runs_and_learns():
    module = build(meta(lambda: nn.LSTM(3, 4)), 0, 0, CPU)
    module(torch.zeros(2, 1, 3))[0].sum().backward()
    assert all(p.grad is not None for p in module.parameters())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)


def test_ties_and_frozen_parameters_stay():
    module = build(meta(Tied), 0, 0, CPU)
    assert isinstance(module, Tied)
    assert module.first.weight is module.second.weight
    assert [p.requires_grad for p in module.parameters()] == [True, True, False]


def test_a_factory_may_return_a_module_on_the_meta_device():
    expected = build(lambda: nn.Linear(2, 2), 0, 0, CPU)
    made = build(lambda: meta(lambda: nn.Linear(2, 2)), 0, 0, CPU)
    assert torch.equal(made.state_dict()["weight"], expected.state_dict()["weight"])


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


class Needy(Bare):
    def reset_parameters(self, std):
        nn.init.normal_(self.scale, std=std)


def test_everything_that_has_a_value_is_accepted():
    made = build(meta(lambda: Forgetful(["scale", "ids", "mask"])), 0, 0, CPU)
    assert isinstance(made, Forgetful)
    assert made.ids.tolist() == [0, 1, 2]
    assert made.mask.all()


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            Bare,
            r"layers\[2\].scale: on the meta device, and Bare has no reset_parameters\(\) without "
            "arguments; give a",
        ),
        (
            Needy,
            r"layers\[2\].scale: on the meta device, and Needy has no reset_parameters\(\) without "
            "arguments",
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


def test_half_on_the_meta_device():
    """Trained weights among them would be lost."""
    with pytest.raises(
        ValueError, match=r"layers\[1\].1.weight: not on the meta device as other parts"
    ):
        build(nn.Sequential(meta(lambda: nn.Linear(2, 2)), nn.Linear(2, 2)), 1, 0, CPU)


def test_layers_on_the_meta_device_share_nothing():
    tied = meta(lambda: nn.Linear(2, 2))
    with pytest.raises(
        ValueError, match=r"layers\[2\].weight: on the meta device and shared with layers\[0\]"
    ):
        as_layers([tied, nn.ReLU(), tied])
    norm = meta(lambda: nn.BatchNorm1d(2, affine=False))
    with pytest.raises(
        ValueError, match=r"layers\[1\].running_mean: on the meta device and shared"
    ):
        as_layers([norm, norm])


def test_counting_builds_nothing_real():
    layers = [
        lambda: nn.Linear(100_000, 100_000),
        nn.ReLU,
        nn.Linear(2, 3),
        meta(lambda: nn.Linear(100_000, 100_000)),
    ]
    assert parameter_counts(layers) == [10_000_100_000, 0, 9, 10_000_100_000]


@pytest.mark.parametrize(
    "wrong", [5, "layers", [], [nn.ReLU(), 3], {"a": nn.ReLU()}, nn.Linear(2, 2)]
)
def test_no_sequence_of_layers(wrong):
    for function in (as_layers, names):
        with pytest.raises(
            ValueError, match=r"layers: expected an nn.Sequential or a sequence of modules or fact"
        ):
            function(wrong)


def test_factory_that_makes_no_module():
    with pytest.raises(ValueError, match=r"layers\[2\]: the factory returned int"):
        build(lambda: 3, 2, 0, CPU)  # pyright: ignore[reportArgumentType]


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


def test_shared_buffers_across_stages():
    norm = nn.BatchNorm1d(2, affine=False)
    refuse_shared([norm, norm, nn.ReLU()], [2, 1])
    with pytest.raises(ValueError, match=r"layers\[1\].running_mean: shared by stages 0 and 1"):
        refuse_shared([norm, norm], [1, 1])


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
