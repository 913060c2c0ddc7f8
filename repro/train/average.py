"""The moving average of the weights (EMA), stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from repro.gpipe.core.layers import modules_of

_Owner = tuple[nn.Module, str]  # the module that has a tensor itself, and the tensor's name there


class Average:
    """An exponential moving average of a stage's weights and running statistics.

    After n updates the decay is min(decay, (1 + n) / (10 + n)), as in TensorFlow's average with
    `num_updates`, which the authors' code uses. So the first weights are soon forgotten. Whole
    numbers, such as batch norm's count of batches, are not averaged but copied. The module's layers
    stay the same.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._module, self._decay = module, decay
        self._averages: dict[_Owner, Tensor] = {}
        self.restart()

    def restart(self) -> None:
        """Make the average what the module is now."""
        self._averages = {
            owner: tensor.detach().clone() for owner, tensor in _tensors_of(self._module).items()
        }

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after an update; `step` counts the updates, with this one."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for owner, tensor in _tensors_of(self._module).items():
            average = self._average_of(owner, tensor)
            if average is None:  # of a buffer that the last forward has set
                self._averages[owner] = tensor.detach().clone()
            elif tensor.is_floating_point():
                average.lerp_(tensor, 1 - decay)
            else:
                average.copy_(tensor)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the module the average's values meanwhile, to evaluate or to save them."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for owner, tensor in _tensors_of(self._module).items():
            average = self._average_of(owner, tensor)
            if average is not None:
                self._averages[owner] = tensor.detach().clone()
                tensor.copy_(average)

    def _average_of(self, owner: _Owner, tensor: Tensor) -> Tensor | None:
        """The average of a tensor; None if there is none of this form."""
        average = self._averages.get(owner)
        if average is None or average.shape != tensor.shape or average.dtype != tensor.dtype:
            return None
        return average


def _tensors_of(module: nn.Module) -> dict[_Owner, Tensor]:
    """The module's own tensors as they are now; one that has two names is there once.

    A forward may assign a new tensor to a buffer, so tensors are looked up in every step.
    `named_parameters` would take as long for that as the average itself.
    """
    tensors: dict[_Owner, Tensor] = {}
    known: set[int] = set()
    for part in modules_of(module):
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            if tensor is not None and id(tensor) not in known:
                known.add(id(tensor))
                tensors[part, name] = tensor
    return tensors
