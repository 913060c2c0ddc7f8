"""Guards by name, and layers that combine examples."""

import random
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from examples import Apply, Around, Means, refused
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.comm.message import Message
from repro.gpipe.exact.guard import Known, Pass
from repro.gpipe.exact.inputs import OverwrittenInputs
from repro.gpipe.exact.rules import GUARDS, NAMES


class Counting(nn.Linear):
    """Adds the number of its calls, which no guard can put back."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.calls = count()

    def forward(self, x):
        return super().forward(x) + next(self.calls)


def test_the_docs_say_what_happens_without_each_guard():
    note = (Path(__file__).parents[2] / "docs/notes/guards.md").read_text(encoding="utf-8")
    rows = [f"| `{guard.__name__}` | {str(guard.__doc__).splitlines()[0]} |" for guard in GUARDS]
    assert "\n".join(rows) in note


@pytest.mark.parametrize("left_out", NAMES)
def test_what_is_left_out_is_not_looked_at(left_out):
    x = torch.randn(6, 4)
    pipe = Pipeline([Counting()], 1, 2, device="cpu", without=[left_out])
    step = x, x, nn.functional.mse_loss
    if left_out == "RecomputeEqualsForward":
        pipe.train_step(*step)
    else:
        refused("its outputs are not the same when", pipe.train_step, *step)


def test_an_r_gets_no_copies_if_its_stage_is_not_known_to_write():
    """A graph may keep a copy until the backward; that of an F which R follows is gone at once."""
    runner, inputs = SimpleNamespace(device="cpu"), [torch.ones(2)]
    guard = OverwrittenInputs(None, runner, None)
    entered = Message.of(inputs, None)
    passes = [
        Pass(stage, 0, entered, first, True, Known(1), [], leaves=inputs, given=inputs)
        for stage, first in ((1, True), (1, False), (0, False))
    ]
    for p in passes:
        guard.before_forward(p)
        assert p.given is not inputs, "R needs them as they came, should F begin to write"
        p.given = inputs
        guard.before_recompute(p)
        assert (p.given is inputs) == (p is passes[1])
        guard.after_forward(p)
    assert guard.end_step(None) is None


class Auxiliary(torch.autograd.Function):
    """Gives an auxiliary loss the gradient of one, beside that of the model."""

    @staticmethod
    def forward(ctx, x, loss):
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, torch.ones_like(ctx.saved_tensors[0])


def clamped():
    linear = nn.Linear(4, 4)
    linear.weight.register_hook(lambda gradient: gradient.clamp(-1e-2, 1e-2))
    return linear


COMBINE = [
    lambda: Apply(lambda x: x - x.mean(0)),
    lambda: nn.TransformerEncoderLayer(4, 1, 8),  # its first dimension is time
    lambda: Apply(lambda x: Auxiliary.apply(x, 1e-2 * x.square().mean())),
    lambda: Around(
        nn.Embedding(3, 4, scale_grad_by_freq=True), lambda m, x: x + m((x[..., 0] > 0).long())
    ),
    clamped,
]
packed = partial(nn.utils.rnn.pack_padded_sequence, batch_first=True, enforce_sorted=False)
unpacked = partial(nn.utils.rnn.pad_packed_sequence, batch_first=True, total_length=3)
SEPARATE = [  # of these none combines any
    lambda: nn.TransformerEncoderLayer(4, 1, 8, batch_first=True),
    lambda: Around(nn.GRU(4, 4), lambda m, x: m(x.transpose(0, 1))[0].transpose(0, 1)),
    lambda: Around(nn.GRU(4, 4), lambda m, x: m(packed(x, 1 + 2 * (x[:, 0, 0] > 0).long()))[0]),
    lambda: Apply(lambda x: unpacked(x)[0]),
    lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.InstanceNorm1d(3), nn.RReLU()),
    lambda: nn.Linear(4, 4),
]


def warnings_of(kinds, dtype, caplog, **how):
    torch.manual_seed(0)
    layers = [kind().to(dtype) for kind in kinds]
    pipe = Pipeline(layers, 1, 3, device="cpu", **how)
    x = torch.randn(6, 3, 4, dtype=dtype, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        pipe.train_step(x, x, nn.functional.mse_loss)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("kind", COMBINE)
def test_a_layer_that_combines_examples_is_named(kind, caplog):
    kinds = [*SEPARATE[:2], kind]
    assert not warnings_of(kinds, torch.float32, caplog, without=["CoupledExamples"])
    (warning,) = warnings_of(kinds, torch.float32, caplog)
    assert warning.startswith(f"layers[2], a {type(kind()).__name__}: its ")
    assert "trains as on batches of 2, not 6; " in warning


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_layers_that_combine_no_examples(dtype, caplog):
    two_stages = {"schedule": "interleaved-1f1b", "stages_per_rank": 2, "balance": [3, 3]}
    for how in ({}, two_stages):  # a packed sequence crosses
        assert not warnings_of(SEPARATE, dtype, caplog, **how)


class Watched(Means):
    """Draws from Python's generator, and writes to a weight in its forward."""

    def __init__(self):
        super().__init__()
        self.weight, self.average = nn.Parameter(torch.ones(6)), nn.Parameter(torch.zeros(6), False)

    def forward(self, x):
        self.average += x.detach().mean(0)
        return super().forward(x * self.weight + random.random()) + self.average


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_looking_for_combined_examples_changes_nothing(recompute):
    found = []
    for without in (["CoupledExamples"], []):
        torch.manual_seed(0)
        random.seed(0)
        layers = [nn.Linear(6, 6), Watched(), nn.BatchNorm1d(6), nn.Dropout(0.3)]
        layers = layers if recompute == "never" else layers[2:]
        how = {"device": "cpu", "recompute": recompute, "without": without}
        pipe = Pipeline([nn.Linear(6, 6), *layers], 1, 3, **how)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        x = torch.randn(9, 6)
        losses = [pipe.train_step(x, x, nn.functional.mse_loss, optimizer).loss for _ in range(3)]
        state = {name: tensor.tolist() for name, tensor in pipe.module.state_dict().items()}
        found.append((losses, state, random.random(), torch.rand(1).item()))
    assert found[0] == found[1]
