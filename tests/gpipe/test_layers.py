"""Sequences of layers: checked, named, counted, and built only where they run."""

from collections import OrderedDict

import torch
from examples import refused
from torch import nn

from repro.gpipe.core.layers import as_layers, build, names, refuse_unfit

CPU = torch.device("cpu")


def test_factories_are_initialised_by_seed_and_layer():
    def factory():
        return nn.Linear(4, 4)

    pairs = ((0, 0), (0, 0), (1, 0), (0, 1))
    weights = [build(factory, index, seed, CPU).state_dict()["weight"] for index, seed in pairs]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[3])


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
    refused(r"layers\[4\].1: SyncBatchNorm would wait .* use nn.Batch", refuse_unfit, layer, 4, 2)
