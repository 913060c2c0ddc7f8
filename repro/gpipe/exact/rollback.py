"""A step that is refused leaves nothing behind: buffers and gradients are as they were before it.

Weights, optimizer state and running statistics need no undoing, because they change only once a
step is good.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.gpipe.exact.buffers import Changing


@contextmanager
def undone_if_refused(parameters: Sequence[Tensor], changing: Changing) -> Iterator[list[Tensor]]:
    """Around a step: undo it if it raises; gives the gradients of earlier steps.

    Those that the caller accumulates over several steps are put aside meanwhile. That takes memory
    for a second set of gradients, but only if a caller accumulates.
    """
    changing.begin_step()
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
        changing.undo()
        raise
    with torch.no_grad():
        for parameter, before in accumulated:
            added = parameter.grad
            if added is None:
                parameter.grad = before
            else:  # in its memory, but that torch adds a dense tensor to no sparse one
                parameter.grad = added + before if before.is_sparse else before.add_(added)
