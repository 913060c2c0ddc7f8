"""One question about many tensors, and what must not replace a good checkpoint."""

import math
from copy import deepcopy

import pytest
import torch
from checkpoints import model, refused, stepped
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.errors import NonFiniteError
from repro.gpipe.exact.nonfinite import refuse_nonfinite


class Widest(nn.Module):
    """Parameters of several dtypes, one with sparse gradients; computes in float64."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, sparse=True, dtype=torch.float64)
        several = (torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
        self.scales = nn.ParameterList(
            [nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in several]
        )

    def forward(self, x):
        for scale in self.scales:
            x = x * (scale.conj() * scale).real if scale.is_complex() else x * scale
        return x + self.table(torch.arange(x.shape[0]) % 4)


def test_a_step_with_gradients_of_every_type():
    """As plain torch, with `train_step`'s own check; an infinite gradient is refused."""
    pipe = Pipeline([Widest], 1, 2, device="cpu")
    whole = deepcopy(pipe.module)
    x, y = torch.rand(4, 4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
    loss = pipe.train_step(x, y, nn.functional.mse_loss).loss
    parts = zip(x.split(2), y.split(2), strict=True)
    wanted = torch.stack([nn.functional.mse_loss(whole(a), b) for a, b in parts]).mean()
    wanted.backward()
    assert loss == pytest.approx(wanted.item())
    for ours, theirs in zip(pipe.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.dtype == theirs.grad.dtype
        torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())
    with pytest.raises(NonFiniteError):
        pipe.train_step(x * math.inf, y, nn.functional.mse_loss)


def test_what_is_named():
    module = model(4, 4)
    module.append(nn.BatchNorm1d(4))
    optimizer = stepped(module, "Adam")
    module.register_buffer("best", torch.tensor(math.inf))
    refuse_nonfinite(module, optimizer)
    for name, tensor in (
        ("0.bias", module.get_parameter("0.bias")),
        (
            "exp_avg of 0.weight in the optimizer",
            optimizer.state[module.get_parameter("0.weight")]["exp_avg"],
        ),
        ("1.running_mean", module.get_buffer("1.running_mean")),
    ):
        with torch.no_grad():
            before = tensor.clone()
            tensor.view(-1)[0] = math.nan
            refused(f"^{name} is inf or nan", refuse_nonfinite, module, optimizer)
            tensor.copy_(before)
    refuse_nonfinite(module, None)
