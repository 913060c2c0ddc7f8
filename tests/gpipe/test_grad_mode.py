"""F without a graph computes the bits that R does with one, also where torch has other kernels."""

import pytest
import torch
from torch import nn

from repro.gpipe.comm.message import Forms, Message
from repro.gpipe.core.microbatch import flatten
from repro.gpipe.core.stage import HeldStages

W = 32
LAYERS = {
    "recurrent": (lambda: nn.LSTM(W, W, num_layers=2), (4, 5, W)),
    "both ways": (lambda: nn.GRU(W, W, bidirectional=True, batch_first=True), (4, 5, W)),
    "cell": (lambda: nn.LSTMCell(W, W), (4, W)),
    "encoder": (lambda: nn.TransformerEncoderLayer(W, 2, W, batch_first=True), (4, 5, W)),
    "linear": (lambda: nn.Linear(W, W), (4, 5, W)),
    "convolution": (lambda: nn.Conv2d(W, W, 3, stride=2, groups=W), (4, W, 9, 9)),
    "norm": (lambda: nn.InstanceNorm2d(W, track_running_stats=True), (4, W, 9, 9)),
    "dropout": (lambda: nn.Dropout(0.3), (4, W)),
}
CELL = (1, 0)  # stage and micro-batch


@pytest.mark.parametrize(("training", "trained"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_recompute_have_the_same_bits(name, training, trained):
    """In the second of two steps; in both modes, trained and frozen."""
    make, shape = LAYERS[name]
    torch.manual_seed(1)
    module = make().train(training).requires_grad_(trained)
    held = HeldStages({1: {0: module}}, ["0"], torch.device("cpu"), 0)
    x = torch.randn(shape, requires_grad=True)
    message, sent, recomputed = Forms().message(0, *flatten(x)), None, None
    for step in range(2):
        held.begin_step(step)
        with held.generators_preserved(watch=False):
            sent = held.forward(CELL, message, keep=False)
            assert held.kept[CELL].outputs is None, "no graph is kept"
            held.recompute(CELL)
            recomputed = held.kept[CELL].outputs
    assert isinstance(sent, Message)
    assert recomputed is not None
    assert torch.equal(sent.tensors[0], recomputed[0])
