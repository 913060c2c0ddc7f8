"""Layers that hold generators or plain tensors: refused if recomputing them would differ."""

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline

MSE = nn.functional.mse_loss


class Layer(nn.Module):
    """A linear layer, and something that it holds as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) * self.factor(x)

    def factor(self, x):
        raise NotImplementedError


class OwnTorch(Layer):
    held = "generator"

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def factor(self, x):
        return torch.rand(x.shape, generator=self.generator)


class Moving(Layer):
    held = "mean"

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def factor(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.mean


class Looked(Layer):
    """Keeps what it saw last, for debugging, and a table that it makes in its first forward."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.written, self.table = torch.zeros(0), torch.zeros(3, 4), None

    def factor(self, x):
        self.last = x
        self.written.copy_(x.detach()[:3])
        self.table = torch.arange(4.0) if self.table is None else self.table
        return self.table


def steps(layer, checkpoint, M=2):
    """The losses of three steps."""
    torch.manual_seed(0)
    pipe = Pipeline(
        [layer, lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))],
        1,
        M,
        checkpoint=checkpoint,
    )
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    return [pipe.train_step(x, x, MSE, optimizer).loss for _ in range(3)]


@pytest.mark.parametrize("layer", [OwnTorch, Moving])
def test_what_recomputation_would_find_otherwise_is_refused(layer):
    made = layer()
    with pytest.raises(
        ValueError, match=rf"^stage 0: 0\.0\.{layer.held} is not the same .*checkpoint='never'$"
    ) as caught:
        steps(nn.Sequential(made), "always")
    assert "\n" not in str(caught.value)
    assert made.linear.weight.grad is None
    steps(layer(), "never")
    steps(layer(), "except_last", M=1)


def test_what_recomputation_finds_as_before_trains():
    torch.manual_seed(2)
    always = steps(Looked(), "always")
    torch.manual_seed(2)
    assert always == steps(Looked(), "never")
