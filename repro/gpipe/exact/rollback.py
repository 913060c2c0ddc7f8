"""A step that is refused leaves nothing behind: buffers and gradients are as they were before it.

Weights, optimizer state and running statistics need no undoing, because they change only once a
step is good.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from repro.gpipe.exact.buffers import Changing


class Rollback:
    """What is needed to undo a step, from its beginning until it counts.

    Gradients that the caller accumulates over several steps are put aside meanwhile. That takes
    memory for a second set of gradients, but only if a caller accumulates.
    """

    def __init__(self, parameters: Sequence[Tensor], changing: Changing) -> None:
        self._parameters, self._changing = parameters, changing
        changing.begin_step()
        self._before = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in self._before:
            parameter.grad = None

    @property
    def accumulated(self) -> list[Tensor]:
        """The gradients of earlier steps."""
        return [gradient for _, gradient in self._before]

    def undo(self) -> None:
        """Leave everything as it was before the step."""
        for parameter in self._parameters:
            parameter.grad = None
        for parameter, before in self._before:
            parameter.grad = before
        self._changing.undo()

    @torch.no_grad()
    def keep(self) -> None:
        """Add the step's gradients to those of earlier steps, in their memory where possible."""
        for parameter, before in self._before:
            added = parameter.grad
            if added is None:
                parameter.grad = before
            else:
                # torch adds a sparse tensor to a dense one, not the other way round.
                parameter.grad = added + before if before.is_sparse else before.add_(added)
