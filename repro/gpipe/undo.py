"""A step that is refused leaves nothing behind: buffers are as they were before it, and gradients are cleared.

Weights, optimizer state and running statistics need no undoing: they change only once a step is good. Gradients that
the caller was adding up himself are lost: to keep a copy would cost their memory in every good step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.gpipe.buffers import Snapshot


@contextmanager
def undone_if_it_fails(leaves: Sequence[Tensor], buffers: Snapshot) -> Iterator[None]:
    """Around F, R and B of a step.

    Args:
        leaves: what the step adds gradients to.
        buffers: copies of what the step may change.
    """
    # The objects too: another module may hold on to them.
    originals = [(module, name, getattr(module, name), copy) for module, name, copy in buffers]
    try:
        yield
    except BaseException:
        for leaf in leaves:
            leaf.grad = None
        with torch.no_grad():
            for module, name, buffer, copy in originals:
                setattr(module, name, buffer.copy_(copy))
        raise
