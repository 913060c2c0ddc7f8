"""A model: a sequence of layers, with its data and its loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from repro.data import images


@dataclass(frozen=True)
class Model:
    """A sequence of layers, and all that is needed to train it.

    Attributes:
        name: as given to `build`.
        layers: one zero-argument factory per layer, or a user's module. A layer maps one value, a
            tensor or a nested tuple of tensors, to one value. Called under `torch.device("meta")`,
            a factory allocates no memory.
        batch: (N, seed) -> (inputs, targets), small real data with leading dimension N.
        loss: (output of the last layer, targets) -> scalar, the mean over examples (tokens).
        unit: of the throughput, "images/s" or "sequences/s".
        labels: facts that every result of this model must state.
    """

    name: str
    layers: Sequence[Callable[[], nn.Module]]
    batch: Callable[[int, int], tuple[Any, Any]]
    loss: Callable[[Any, Tensor], Tensor]
    unit: str
    labels: Mapping[str, str] = field(default_factory=dict)


def require(holds: bool, name: str, value: object, allowed: str, tip: str) -> None:
    """Raise a one-line ValueError about the argument `name` unless `holds`."""
    if not holds:
        raise ValueError(f"{name}={value!r}: allowed is {allowed}; try {tip}")


def digits(image: int, classes: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    """N digits as images [N, 3, image, image] and classes [N].

    Where there are fewer than ten classes, the digits count modulo their number.
    """
    inputs, labels = images.batch(N, image, seed)
    return inputs, labels % classes
