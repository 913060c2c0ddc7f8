"""Where F computes other bits without a graph than R does with one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import Forms, Message
from repro.gpipe.core.microbatch import flatten
from repro.gpipe.core.stage import HeldStages

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
        lambda: encoder(batch_first=True),
        lambda: encoder(batch_first=True, norm_first=True),
        lambda: nn.Linear(W, W),
        lambda: nn.LayerNorm(W),
        lambda: nn.Dropout(0.3),
    ],
    "image": [
        lambda: nn.Conv2d(W, W, 3),
        lambda: nn.Conv2d(W, W, 3, stride=2, groups=W),
        lambda: nn.BatchNorm2d(W),
        lambda: nn.InstanceNorm2d(W, affine=True, track_running_stats=True),
        lambda: nn.GroupNorm(4, W),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    ],
    "vector": [lambda: nn.LSTMCell(W, W)],
}
CELL = (1, 0)  # stage and micro-batch


def forward_and_recompute(module: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """What the F of the second of two steps makes, which has no graph, and what its R does."""
    held = HeldStages({1: {0: module}}, ["0"], torch.device("cpu"), 0)
    message, sent = Forms().message(0, *flatten(inputs)), None
    for step in range(2):
        held.begin_step(step)
        with held.generators_preserved(watch=False):
            sent = held.forward(CELL, message, keep=False)
            assert held.kept[CELL].outputs is None, "no graph is kept"
            held.recompute(CELL)
    recomputed = held.kept[CELL].outputs
    assert recomputed is not None
    assert isinstance(sent, Message)
    return sent.tensors[0], recomputed[0]


@pytest.mark.parametrize(("training", "trained"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("shape", LAYERS)
def test_forward_and_recompute_have_the_same_bits(shape, training, trained):
    """Torch's own layers, in both modes, trained and frozen."""
    for make in LAYERS[shape]:
        torch.manual_seed(1)
        module = make().train(training).requires_grad_(trained)
        x = torch.randn(SHAPES[shape], requires_grad=True)
        sent, recomputed = forward_and_recompute(module, x)
        assert torch.equal(sent, recomputed), module
