"""Where F computes other bits without a graph than R does with one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from repro.gpipe import grad_mode
from repro.gpipe.layers import build
from repro.gpipe.stage import Stage
from repro.models import build as build_model

W = 32
SHAPES = {"sequence": (4, 5, W), "image": (4, W, 9, 9), "vector": (4, W)}


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    """A layer of a transformer."""
    return nn.TransformerEncoderLayer(W, 2, W, **options)


LAYERS: dict[str, list[Callable[[], nn.Module]]] = {
    "sequence": [
        *(
            lambda kind=kind, o=o: kind(W, W, **o)
            for kind in (nn.RNN, nn.GRU, nn.LSTM)
            for o in ({}, {"num_layers": 2})
        ),
        lambda: nn.LSTM(W, W, bidirectional=True, batch_first=True),
        lambda: encoder(activation="gelu"),
        lambda: encoder(batch_first=True),
        lambda: encoder(batch_first=True, norm_first=True),
        lambda: nn.TransformerEncoder(encoder(batch_first=True), 2),
        lambda: nn.Linear(W, W),
        lambda: nn.LayerNorm(W),
        lambda: nn.RMSNorm(W),
        nn.GELU,
        nn.SiLU,
        nn.Softplus,
        lambda: nn.Softmax(-1),
        lambda: nn.Dropout(0.3),
    ],
    "image": [
        lambda: nn.Conv2d(W, W, 3),
        lambda: nn.Conv2d(W, W, 3, stride=2, groups=W),
        lambda: nn.ConvTranspose2d(W, W, 3),
        lambda: nn.BatchNorm2d(W),
        lambda: nn.InstanceNorm2d(W, affine=True, track_running_stats=True),
        lambda: nn.GroupNorm(4, W),
        lambda: nn.MaxPool2d(2),
        lambda: nn.AvgPool2d(2),
        lambda: nn.AdaptiveAvgPool2d(3),
        lambda: nn.LPPool2d(2, 2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    ],
    "vector": [
        lambda: nn.LSTMCell(W, W),
        lambda: nn.GRUCell(W, W),
        lambda: nn.BatchNorm1d(W),
        lambda: nn.Bilinear(W, W, W),
    ],
}
CASES = [(shape, n) for shape, layers in LAYERS.items() for n in range(len(layers))]


def output(module: nn.Module, *, graph: bool, inputs: torch.Tensor) -> torch.Tensor:
    """The first output of a copy of the module, which draws and starts alike in every call."""
    torch.manual_seed(0)
    module, inputs = copy.deepcopy(module), inputs.clone().requires_grad_(graph)
    with torch.set_grad_enabled(graph):
        value: Any = module(inputs, inputs) if isinstance(module, nn.Bilinear) else module(inputs)
    while isinstance(value, tuple):
        value = value[0]
    return value.detach()


@pytest.mark.parametrize(("shape", "n"), CASES)
def test_layers_that_compute_other_bits_without_a_graph_are_known(shape, n):
    """Torch's own layers, in both modes, trained and frozen."""
    torch.manual_seed(1)
    module = LAYERS[shape][n]()
    inputs = torch.randn(SHAPES[shape])
    for training in (True, False):
        module.train(training)
        known = grad_mode.wants_graph(grad_mode.sensitive(module))
        for trained in (True, False):
            module.requires_grad_(trained)
            with_graph, without = (output(module, graph=graph, inputs=inputs) for graph in (True, False))
            assert known or torch.equal(with_graph, without), (training, trained)


class Own(nn.Module):
    """Chooses by grad mode itself, and says so."""

    depends_on_grad_mode = True

    def forward(self, x):
        return x * (2.0 if torch.is_grad_enabled() else 3.0)


def test_a_layer_of_ones_own_may_say_so():
    stage = Stage({0: nn.Linear(2, 2), 1: nn.Sequential(Own())}, ["0", "1"], torch.device("cpu"), 0)
    stage.head = lambda _i, outputs: outputs.sum()
    loss = stage.forward(0, torch.ones(1, 2), keep=False)
    assert stage.kept[0].outputs is None, "no graph is kept"
    stage.recompute(0)
    outputs = stage.kept[0].outputs
    assert outputs is not None
    assert torch.equal(outputs[0], loss)


@pytest.mark.parametrize("name", ["amoebanet-d", "transformer"])
def test_the_papers_models_need_no_graph_in_f(name):
    """It costs time where operators are small."""
    args = {"transformer": {"L": 1, "d": 16, "H": 16, "heads": 2, "V": 16, "T": 4}}.get(
        name, {"L": 3, "D": 16, "image": 32}
    )
    layers = build_model(name, **args).layers
    modules = [build(layer, n, 0, torch.device("cpu")) for n, layer in enumerate(layers)]
    assert not grad_mode.sensitive(nn.Sequential(*modules))


def test_attention_needs_a_graph_in_eval_mode_only():
    module = nn.Sequential(nn.Linear(W, W), nn.MultiheadAttention(W, 2))
    parts = grad_mode.sensitive(module)
    assert not grad_mode.wants_graph(parts)
    module[1].eval()
    assert grad_mode.wants_graph(parts)
