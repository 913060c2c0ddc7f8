"""Where F computes other bits without a graph than R does with one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.core.microbatch import flatten
from repro.gpipe.core.stage import HeldStages
from repro.gpipe.exact.grad_mode import OperatorLog
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
        lambda: nn.Linear(W, W),
        lambda: nn.LayerNorm(W),
        nn.GELU,
        lambda: nn.Softmax(-1),
        lambda: nn.Dropout(0.3),
    ],
    "image": [
        lambda: nn.Conv2d(W, W, 3),
        lambda: nn.Conv2d(W, W, 3, stride=2, groups=W),
        lambda: nn.BatchNorm2d(W),
        lambda: nn.InstanceNorm2d(W, affine=True, track_running_stats=True),
        lambda: nn.GroupNorm(4, W),
        lambda: nn.MaxPool2d(2),
        lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    ],
    "vector": [
        lambda: nn.LSTMCell(W, W),
        lambda: nn.BatchNorm1d(W),
    ],
}
CELL = (1, 0)  # stage and micro-batch


def forward_and_recompute(
    modules: list[nn.Module], inputs: Any, steps: int = 2
) -> tuple[Tensor, Tensor]:
    """What the F of the last of some steps makes, and what its R does."""
    held = HeldStages(
        {1: dict(enumerate(modules))}, [str(n) for n in range(len(modules))], torch.device("cpu"), 0
    )
    sent: Any = None
    for step in range(steps):
        held.begin_step(step)
        with held.generators_preserved(watch=False):
            sent = held.forward(CELL, inputs, keep=False)
            assert held.kept[CELL].outputs is None, "no graph is kept"
            held.recompute(CELL)
    recomputed = held.kept[CELL].outputs
    assert recomputed is not None
    return flatten(sent)[0][0], recomputed[0]


@pytest.mark.parametrize(("training", "trained"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("shape", LAYERS)
def test_forward_and_recompute_have_the_same_bits(shape, training, trained):
    """Torch's own layers, in both modes, trained and frozen."""
    for make in LAYERS[shape]:
        torch.manual_seed(1)
        module = make().train(training).requires_grad_(trained)
        x = torch.randn(SHAPES[shape], requires_grad=True)
        sent, recomputed = forward_and_recompute([module], x)
        assert torch.equal(sent, recomputed), module


class Own(nn.Module):
    """Chooses by grad mode itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (2.0 if torch.is_grad_enabled() else 3.0)


def test_a_layer_that_asks_for_the_grad_mode():
    sent, recomputed = forward_and_recompute(
        [nn.Linear(2, 2), nn.Sequential(Own())], torch.ones(1, 2)
    )
    assert torch.equal(sent, recomputed)


def test_a_layer_that_goes_to_eval_mode_later():
    """Attention takes its fast path only then."""
    torch.manual_seed(1)
    module = encoder(batch_first=True)
    held = HeldStages({1: {0: module}}, ["0"], torch.device("cpu"), 0)
    x = torch.randn(SHAPES["sequence"])
    for step in range(4):
        module.train(step < 2)
        held.begin_step(step)
        with held.generators_preserved(watch=False):
            sent = held.forward(CELL, x, keep=False)
            held.recompute(CELL)
        recomputed = held.kept[CELL].outputs
        assert recomputed is not None
        assert torch.equal(sent, recomputed[0]), step


class Switched(nn.Module):
    """Detaches what passes, or freezes its inner layer, until it is switched on."""

    def __init__(self, freezes: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(W, W)
        self.freezes = freezes
        self.on = False

    def forward(self, x: Tensor) -> Tensor:
        self.inner.requires_grad_(self.on or not self.freezes)
        x = self.inner(x)
        return x if self.on or self.freezes else x.detach()


@pytest.mark.parametrize("freezes", [True, False])
def test_a_layer_that_lets_gradients_through_later(freezes):
    """No boundary shows it, but layers behind it may choose other kernels."""
    switched = Switched(freezes)
    modules = {0: switched, 1: encoder(batch_first=True).eval().requires_grad_(False)}
    held = HeldStages({1: modules}, ["0", "1"], torch.device("cpu"), 0)
    held.begin_step(0)
    x = torch.randn(SHAPES["sequence"])
    for on, unexpected in ((False, False), (True, True), (True, False)):
        switched.on = on
        held.begin_step(0)
        with held.generators_preserved(watch=False):
            sent = held.forward(CELL, x, keep=False)
            held.recompute(CELL)
        held.end_step()
        if freezes and not on:
            continue  # the layer is frozen from its first forward on
        assert bool(held.unexpected) == unexpected
        recomputed = held.kept[CELL].outputs
        assert recomputed is not None
        assert unexpected or torch.equal(sent, recomputed[0])


def test_an_operator_that_chooses_its_kernel_inside():
    """oneDNN's LSTM is one operator, so its results are compared, bit by bit."""
    with OperatorLog() as alike:
        torch.ones(2, 2) + torch.full((2, 2), 1.0)
    with OperatorLog() as same:
        torch.ones(2, 2) + torch.full((2, 2), 1.0)
    with OperatorLog() as other:
        torch.ones(2, 2) + torch.full((2, 2), 1.0000002)
    assert alike.calls == same.calls
    assert alike.calls[0] == other.calls[0]
    assert alike.calls[-1][2] != other.calls[-1][2]


@pytest.mark.parametrize("name", ["amoebanet-d", "transformer"])
def test_the_papers_models_need_no_graph_in_f(name):
    """It would cost time."""
    args = {"transformer": {"L": 1, "d": 16, "H": 16, "heads": 2, "V": 16, "T": 4}}.get(
        name, {"L": 3, "D": 16, "image": 32}
    )
    model = build_model(name, **args)
    pipe = Pipeline(model.layers, 1, 2, device="cpu")
    pipe.train_step(*model.batch(4, 0), model.loss, torch.optim.SGD(pipe.parameters(), lr=0.1))
    assert [trial.needs_no_graph for trial in pipe.held._trials.values()] == [True]
