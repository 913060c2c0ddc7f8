"""A step that fails leaves running statistics and gradients as they were."""

from itertools import count

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline

C, M = 3, 4


class Faulty(nn.Module):
    """Fails in a chosen call."""

    fails_at = -1

    def __init__(self):
        super().__init__()
        self.calls = count(1)  # no number, which recomputation would find as before

    def forward(self, x):
        if next(self.calls) == self.fails_at:
            raise RuntimeError("not today")
        return x


def step(pipe):
    x = torch.randn(10, C, 5, 4, generator=torch.Generator().manual_seed(0))
    pipe.train_step(x, 2.0 * x, nn.functional.mse_loss)


# The first F is tried once more without a graph.
@pytest.mark.parametrize("fails_at", [4, 6], ids=["third F", "R"])
def test_a_step_that_fails_leaves_no_trace(fails_at):
    """The next step is as if it had not been."""
    faulty, norms, pipes = Faulty(), [], []
    for layer in (faulty, nn.Identity()):
        norms.append(nn.BatchNorm2d(C))
        pipes.append(Pipeline([nn.Sequential(norms[-1], layer)], 1, M, device="cpu"))
    for norm in norms:  # gradients to which a step adds
        norm.weight.grad = torch.ones(C)
    given = norms[0].weight.grad
    before = {name: buffer.clone() for name, buffer in norms[0].named_buffers()}
    faulty.fails_at = fails_at
    with pytest.raises(RuntimeError, match="not today"):
        step(pipes[0])
    assert all(torch.equal(value, norms[0].get_buffer(key)) for key, value in before.items())
    assert norms[0].weight.grad is given
    assert given.tolist() == [1.0] * C
    assert (norms[0].momentum, len(norms[0]._forward_hooks)) == (0.1, 0)
    faulty.fails_at = -1
    for pipe in pipes:
        step(pipe)
    for key, value in norms[1].named_buffers():
        assert torch.equal(norms[0].get_buffer(key), value)
    torch.testing.assert_close(norms[0].weight.grad, norms[1].weight.grad, rtol=0, atol=0)
