"""Replicas: how gradients add up; test_compare.py has what they train."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import WIDTH, linear
from torch import Tensor, nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core import replicas
from repro.gpipe.core.layers import Layer
from repro.gpipe.schedule.actions import Cell

M, D, STEPS = 2, 2, 3
SMALL_BUCKET = 200  # bytes: a weight, or two biases
PLAIN = nn.functional.mse_loss
LAYERS: list[Layer] = [linear, nn.Tanh, linear, linear]


def batch(replica: int, n: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(10 + replica)
    x, y = (torch.randn(n, WIDTH, generator=generator) for _ in range(2))
    return x, y


def _replace(pipe: Pipeline) -> None:
    torch.manual_seed(3)
    pipe.module[2].weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


CHANGES: dict[str, Callable[[Pipeline], object]] = {
    "replaced": _replace,
    "weight norm": lambda pipe: nn.utils.parametrizations.weight_norm(pipe.module[2]),
    "thawed": lambda pipe: pipe.module[2].requires_grad_(True),
}


def changed(case: str, replicas: int) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights where parameters change after a step.

    A single replica gets the mini-batches of all of them.
    """
    pipe = Pipeline(LAYERS, 1, M * D // replicas, replicas=replicas, device="cpu", seed=4)
    pipe.module[2].requires_grad_(case != "thawed")
    parts = [batch(d, 8) for d in range(D)]
    x, y = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    x, y = parts[pipe.replica] if replicas > 1 else (x, y)
    losses = []
    for step in range(STEPS):
        if step == 1:
            CHANGES[case](pipe)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.2, weight_decay=0.1)
        losses.append(pipe.train_step(x, y, PLAIN, optimizer).loss)
    pipe.close()
    return losses, {key: value.detach().clone() for key, value in pipe.module.state_dict().items()}


class Recording:
    """A process group that notes how many elements are summed, and when."""

    def __init__(self, group: Any, events: list[Any]) -> None:
        self._group, self._events = group, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[Tensor]) -> dist.Work:
        self._events.append(tensors[0].numel())
        return self._group.allreduce(tensors)


def bucketed() -> list[Any]:
    """What the last backward of a step did, with small buckets."""
    events: list[Any] = []
    before, replicas.BUCKET = replicas.BUCKET, SMALL_BUCKET
    pipe = Pipeline(LAYERS, 1, M, replicas=D, balance="uniform", device="cpu", seed=4)
    copies = pipe.engine.replicas
    assert copies is not None
    copies._group = Recording(copies._group, events)
    backward = pipe.held.backward

    def noted(cell: Cell, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        events.append("B begins")
        result = backward(cell, gradients)
        events.append("B ends")
        return result

    pipe.held.backward = noted
    pipe.train_step(*batch(pipe.replica, (7, 4)[pipe.replica]), PLAIN)
    pipe.close()
    replicas.BUCKET = before
    return events


def everything() -> dict[str, Any]:
    return {"bucketed": bucketed(), **{case: changed(case, D) for case in CHANGES}}


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=D)


def test_buckets_are_summed_while_the_last_backward_runs(ran):
    """Last layers first, and in the same order on both replicas."""
    events = ran[0]["bucketed"]
    assert events == ran[1]["bucketed"]
    ends = [n for n, event in enumerate(events) if event == "B ends"]
    first = events.index("B begins")
    sums = [n for n, event in enumerate(events) if isinstance(event, int) and n > first]
    assert len(ends) == M
    assert not [n for n in sums if n < ends[-2]], "no gradient is final before the last backward"
    assert len([n for n in sums if n < ends[-1]]) >= 3, "one for each layer at least"


@pytest.mark.parametrize("case", CHANGES)
def test_parameters_that_are_new_are_summed_too(ran, case):
    """Also parameters that weight norm, pruning or the user replaced after the build."""
    losses, weights = changed(case, 1)
    first, second = (found[case] for found in ran)
    assert first[0] == second[0]
    assert first[0] == pytest.approx(losses, rel=1e-5)
    assert weights.keys() == first[1].keys()
    for key, value in weights.items():
        assert torch.equal(first[1][key], second[1][key]), key
        torch.testing.assert_close(first[1][key], value, rtol=1e-5, atol=1e-6)
