"""One question about many tensors, and what must not replace a good checkpoint."""

import math

import pytest
import torch
from checkpoints import model, stepped
from examples import refused
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.exact.nonfinite import refuse_nonfinite


class Widest(nn.Module):
    """Parameters of several dtypes, one with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, sparse=True)
        kinds = torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(4, dtype=kind)) for kind in kinds)

    def forward(self, x):
        for scale in self.scales:
            x = x * (scale.conj() * scale).real
        return x + self.table(torch.arange(x.shape[0]) % 4)


def test_a_step_with_gradients_of_every_type():
    pipe = Pipeline([Widest], 1, 2, device="cpu")
    x = torch.rand(4, 4, dtype=torch.float64)
    pipe.train_step(x, x, nn.functional.mse_loss)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in pipe.parameters())
    with pytest.raises(NonFiniteError):
        pipe.train_step(x * math.inf, x, nn.functional.mse_loss)


def test_what_is_named():
    module = model(4, 4)
    module.append(nn.BatchNorm1d(4))
    optimizer = stepped(module, "Adam")
    module.register_buffer("best", torch.tensor(math.inf))
    refuse_nonfinite(module, optimizer)
    weight = module.get_parameter("0.weight")
    for name, tensor in (
        ("0.bias", module.get_parameter("0.bias")),
        ("exp_avg of 0.weight in the optimizer", optimizer.state[weight]["exp_avg"]),
        ("1.running_mean", module.get_buffer("1.running_mean")),
    ):
        first = tensor.detach().view(-1)[:1]
        before = first.clone()
        first.fill_(math.nan)
        refused(f"^{name} is inf or nan", refuse_nonfinite, module, optimizer)
        first.copy_(before)
    refuse_nonfinite(module, None)
