"""`Pipeline.compare`: it finds what differs from the unsplit model, and changes nothing."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import Apply, CountingLoss
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from repro.gpipe import Pipeline, RefusedError, launch

X, Y = torch.randn(10, 8, generator=torch.Generator().manual_seed(1)), torch.arange(10) % 4


class Counting(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def of_rank(x: Tensor) -> Tensor:
    """Something else in another process."""
    return x * (1 + dist.get_rank())


def model(first: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), Counting(), nn.Linear(16, 4)
    return nn.Sequential(first, *layers)


def state(pipe: Pipeline) -> list[Any]:
    counts = [part.calls for part in pipe.module if isinstance(part, Counting)]
    gradients = [None if p.grad is None else p.grad.tolist() for p in pipe.parameters()]
    tensors = {key: value.tolist() for key, value in pipe.module.state_dict().items()}
    return [counts, gradients, tensors, torch.get_rng_state().tolist(), pipe.engine.step]


def compare(loss_fn: Any, K: int, D: int, schedule: str, first: Any = nn.Identity) -> Any:
    if dist.get_rank() >= K * D:
        return None
    pipe = Pipeline(model(first()), K, 4, D, device="cpu", schedule=schedule)
    pipe.train_step(X, Y, nn.CrossEntropyLoss())
    before = state(pipe)
    found = pipe.compare(X, Y, loss_fn)
    assert state(pipe) == before
    return found


def contrastive(outputs: Tensor, _: Tensor) -> Tensor:
    z = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(z @ z.T, torch.arange(len(z)))


def hooked() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.bias.register_hook(torch.neg)
    return layer


WAYS = [(1, 1, "gpipe"), (2, 1, "gpipe"), (3, 1, "1f1b"), (2, 2, "gpipe")]


def all_ways() -> list[Any]:
    loss_fn = nn.CrossEntropyLoss()
    right = [compare(loss_fn, *way) for way in WAYS]
    wrong = compare(loss_fn, *WAYS[1], first=lambda: Apply(of_rank))
    if dist.get_rank() < 2:
        with pytest.raises(RefusedError, match=r"^compare: 0\.bias has a hook"):
            compare(loss_fn, *WAYS[1], first=hooked)
        with pytest.raises(RefusedError, match=r"^compare: a layer of rank 0 cannot be copied"):
            compare(loss_fn, *WAYS[1], first=lambda: weight_norm(nn.Linear(8, 8)))
        with pytest.raises(RefusedError, match="M = D = 1 if it compares examples"):
            compare(contrastive, *WAYS[1])
    return [*right, wrong]


def test_a_step_is_compared_with_the_unsplit_model():
    ranks = launch(all_ways, stages=4)
    *right, of_other_rank = ranks[0]
    for n, (way, found) in enumerate(zip(WAYS, right, strict=True)):
        assert all(rank[n] in (found, None) for rank in ranks)
        # Running statistics are merged in float64 and once.
        apart = {each.name for each in found.differences if each.verdict != "same bits"}
        assert apart <= {"2.running_mean", "2.running_var"}, (way, str(found))
        assert found.verdict in ("same bits", "rounding")
        assert len(found.differences) == 1 + 6 + 3
    assert of_other_rank.verdict == "different"
    assert "gradient  1.weight" in str(of_other_rank)


def test_the_loss_and_the_inputs_are_left_alone():
    pipe, loss_fn = Pipeline(model(nn.Identity()), 1, 4, device="cpu"), CountingLoss()
    x = X.clone().requires_grad_()
    assert pipe.compare(x, X[:, :4], loss_fn).verdict != "different"
    assert (loss_fn.calls.item(), x.grad) == (0, None)
