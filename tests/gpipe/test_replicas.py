"""When replicas sum gradients; test_compare.py has what they train."""

from typing import Any

import torch.distributed as dist
from examples import batch, linear
from torch import Tensor, nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core import replicas

M, D = 2, 2
SMALL_BUCKET = 200  # bytes: a weight, or two biases


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
    replicas.BUCKET = SMALL_BUCKET
    pipe = Pipeline([linear, nn.Tanh, linear, linear], 1, M, replicas=D, device="cpu")
    copies = pipe.engine.replicas
    assert copies is not None
    copies._group = Recording(copies._group, events)
    backward = pipe.held.backward

    def noted(cell: Any, gradients: Any) -> list[Tensor | None]:
        events.append("B begins")
        result = backward(cell, gradients)
        events.append("B ends")
        return result

    pipe.held.backward = noted
    pipe.train_step(*batch(), nn.functional.mse_loss)
    pipe.close()
    return events


def test_buckets_are_summed_while_the_last_backward_runs():
    """Last layers first, and in the same order on both replicas."""
    events, others = launch(bucketed, stages=D)
    assert events == others
    ends = [n for n, event in enumerate(events) if event == "B ends"]
    first = events.index("B begins")
    sums = [n for n, event in enumerate(events) if isinstance(event, int) and n > first]
    assert len(ends) == M
    assert not [n for n in sums if n < ends[-2]], "no gradient is final before the last backward"
    assert len([n for n in sums if n < ends[-1]]) >= 3, "one for each layer at least"
