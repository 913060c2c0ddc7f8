"""The moving average of the weights (EMA), stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """An exponential moving average of a stage's weights and running statistics.

    After n updates the decay is min(decay, (1 + n) / (10 + n)), as in TensorFlow's average with
    `num_updates`, which the authors' code uses. So the first weights are soon forgotten. Whole
    numbers, such as batch norm's count of batches, are not averaged but copied.

    Args:
        module: of the stage.
        decay: of the average, 0.9999 in the authors' code.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._module = module
        self._decay = decay
        self._values: dict[str, Tensor] = {}
        self.restart()

    def restart(self) -> None:
        """Make the average what the module is now."""
        self._values = {key: value.detach().clone() for key, value in self._state().items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after an update.

        Args:
            step: updates so far, this one included.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        for key, value in self._state().items():
            if value.is_floating_point():
                self._values[key].lerp_(value, 1 - decay)
            else:
                self._values[key].copy_(value)

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
        for key, value in self._state().items():
            kept = value.detach().clone()
            value.copy_(self._values[key])
            self._values[key].copy_(kept)

    def _state(self) -> dict[str, Tensor]:
        """The module's own tensors; one that has two names is there once."""
        return dict([*self._module.named_parameters(), *self._module.named_buffers()])
