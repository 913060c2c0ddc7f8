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
        # One that has two names is there once. To find them takes as long as to average them, so
        # it is done only here.
        self._tensors: list[Tensor] = [*module.parameters(), *module.buffers()]
        self._decay = decay
        self._averages: list[Tensor] = []
        self.restart()

    def restart(self) -> None:
        """Make the average what the module is now."""
        self._averages = [tensor.detach().clone() for tensor in self._tensors]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the weights after an update.

        Args:
            step: updates so far, this one included.
        """
        decay = min(self._decay, (1 + step) / (10 + step))
        for average, tensor in zip(self._averages, self._tensors, strict=True):
            if tensor.is_floating_point():
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
        for average, tensor in zip(self._averages, self._tensors, strict=True):
            kept = tensor.detach().clone()
            tensor.copy_(average)
            average.copy_(kept)
