"""The moving average of the weights (EMA), stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class Average:
    """An exponential moving average of a stage's weights and running statistics.

    After n updates the decay is min(decay, (1 + n) / (10 + n)), as in TensorFlow's average with
    `num_updates`, which the authors' code uses. So the first weights soon count little. Whole
    numbers, such as batch norm's count of batches, are not averaged but copied.

    A layer has to change its tensors in place, as the layers of torch do.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        self._tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
        self.restart()

    def restart(self) -> None:
        """Set the average to the present values."""
        self._averages = [tensor.clone() for tensor in self._tensors]

    def update(self, step: int) -> None:
        """Move towards the present values; `step` counts the updates, this one included."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for average, tensor in zip(self._averages, self._tensors, strict=True):
            if tensor.is_floating_point():
                average.lerp_(tensor, 1 - decay)
            else:
                average.copy_(tensor)

    @contextmanager
    def in_place_of_weights(self) -> Iterator[None]:
        """Give the module the averages for a while, to evaluate them."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        present = [tensor.clone() for tensor in self._tensors]
        for average, tensor in zip(self._averages, self._tensors, strict=True):
            tensor.copy_(average)
        self._averages = present
