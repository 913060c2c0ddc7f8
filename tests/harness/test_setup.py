"""Weights that are drawn where they are used; `_drawn` draws on the CPU here, as on a GPU."""

import torch
from torch import nn

from repro.harness.tasks.setup import _drawn, drawn_on
from repro.models import Model


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))


def test_weights_are_drawn_by_the_number_of_the_layer_and_only_for_a_gpu():
    ready = nn.ReLU()
    model = Model("own", [layer, ready, layer], lambda N, seed: (N, seed), nn.MSELoss(), "x/s")
    cpu = torch.device("cpu")
    assert drawn_on(cpu, model) is model
    drawn = drawn_on(torch.device("cuda"), model).layers
    assert drawn[1] is ready
    with torch.device("meta"):  # where layers are counted, no GPU is needed
        assert {p.device.type for p in drawn[0]().parameters()} == {"meta"}
    first, again, third = (_drawn(layer, index, cpu).state_dict() for index in (0, 0, 2))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not torch.equal(first["0.weight"], third["0.weight"])
    assert 0.018 < first["0.weight"].std() < 0.022
    assert not first["1.running_var"].any()
