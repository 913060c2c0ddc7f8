"""A step that is refused leaves nothing behind: buffers and gradients are as they were before it.

Weights, optimizer state and running statistics need no undoing, because they change only once a
step is good.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.gpipe.exact.buffers import Snapshot


@contextmanager
def undone_if_it_fails(parameters: Sequence[Tensor], buffers: Snapshot) -> Iterator[list[Tensor]]:
    """Around F, R and B of a step; yields the gradients from before the step.

    Gradients that the caller accumulates over several steps are put aside meanwhile. The step's own
    are added to them at its end. That takes memory for a second set of gradients, but only if a
    caller accumulates.

    Args:
        parameters: what the step adds gradients to.
        buffers: copies of the buffers and numbers that the step may change.
    """
    # The buffers are kept as objects, because other modules may refer to them.
    originals = [(module, name, getattr(module, name), copy) for module, name, copy in buffers]
    accumulated = [(p, p.grad) for p in parameters if p.grad is not None]
    for parameter, _ in accumulated:
        parameter.grad = None
    try:
        yield [gradient for _, gradient in accumulated]
    except BaseException:
        for parameter in parameters:
            parameter.grad = None
        for parameter, before in accumulated:
            parameter.grad = before
        with torch.no_grad():
            for module, name, before, copy in originals:
                setattr(module, name, before.copy_(copy) if isinstance(before, Tensor) else copy)
        raise
    with torch.no_grad():
        for parameter, before in accumulated:
            parameter.grad = _sum(before, parameter.grad)


def _sum(before: Tensor, added: Tensor | None) -> Tensor:
    """The sum of two gradients, in the memory of the first where that is possible."""
    if added is None:
        return before
    # torch adds a sparse tensor to a dense one, not the other way round.
    return added + before if before.is_sparse else before.add_(added)
