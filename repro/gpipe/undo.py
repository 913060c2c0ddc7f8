"""A step that is refused leaves nothing behind: gradients and buffers are as they were before it.

Weights, optimizer state and running statistics need no undoing: they change only once a step is good.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from repro.gpipe.buffers import Snapshot


@contextmanager
def undone_if_it_fails(leaves: Sequence[Tensor], buffers: Snapshot) -> Iterator[None]:
    """Put gradients and buffers back if the step inside raises.

    Args:
        leaves: what the step adds gradients to; copies are made of gradients that were there already, so a step that
            clears them costs nothing.
        buffers: copies of what the step may change.
    """
    gradients = [(leaf, grad, grad.clone()) for leaf in leaves if (grad := leaf.grad) is not None]
    # The objects too: an optimizer, or another module, may hold on to them.
    originals = [(module, name, getattr(module, name), copy) for module, name, copy in buffers]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for leaf in leaves:
                leaf.grad = None
            for leaf, grad, copy in gradients:
                leaf.grad = grad.copy_(copy)
            for module, name, buffer, copy in originals:
                setattr(module, name, buffer.copy_(copy))
        raise
