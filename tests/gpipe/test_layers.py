"""Sequences of layers: checked, named, counted, and built only where they run."""

from collections import OrderedDict

import pytest
import torch
from examples import refused
from torch import nn

from repro.gpipe.core.layers import as_layers, build, names, refuse_unfit

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


def test_names_are_those_of_the_unsplit_model():
    relu = nn.ReLU()
    block = nn.Sequential(nn.Linear(2, 2), relu)
    model = nn.Sequential(OrderedDict(stem=nn.Linear(2, 2), first=relu, block=block, again=relu))
    assert names(model) == ["stem", "first", "block", "again"]
    assert len(as_layers(model)) == 4
    assert names(nn.Sequential(relu, relu)) == ["0", "1"]
    assert names(nn.ModuleList([relu, block])) == names([relu, nn.ReLU]) == ["0", "1"]


def test_what_would_wait_for_other_stages_is_refused():
    layer = nn.Sequential(nn.ReLU(), nn.SyncBatchNorm(2))
    refused(
        r"layers\[4\].1: SyncBatchNorm would wait .* use nn.Batch", refuse_unfit, layer, 4, 2, 1
    )
