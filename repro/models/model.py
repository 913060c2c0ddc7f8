"""A model: a sequence of layers, with its data and its loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from repro.data import images


@dataclass(frozen=True)
class Model:
    """A sequence of layers with its data and its loss.

    A layer is a factory without arguments, or a user's module. It maps one value to one value; a
    value is a tensor or a nested tuple of tensors. Under `torch.device("meta")` a factory allocates
    no memory.

    Attributes:
        name: as given to `build`; a user's own model is named by its path.
        layers: in order; each gets the value of the previous layer, and the first gets the inputs.
        batch: (N, seed) -> (inputs, targets), the same small real data for the same seed.
        loss: (output of the last layer, targets) -> a mean, such as the mean over the examples.
        unit: of the throughput in examples a second: "images/s" or "sequences/s".
        labels: facts that a result must state, such as the origin of the data.
    """

    name: str
    layers: Sequence[Callable[[], nn.Module]]
    batch: Callable[[int, int], tuple[Any, Any]]
    loss: Callable[[Any, Tensor], Tensor]
    unit: str
    labels: Mapping[str, str] = field(default_factory=dict)


def of_images(
    name: str, layers: Sequence[Callable[[], nn.Module]], image: int, classes: int
) -> Model:
    """A model of images [N, 3, image, image], from layers that end in logits.

    The data are the digits; with fewer than ten classes, a digit's class is the digit modulo their
    number.
    """
    batch = partial(images.batch, image, classes)
    labels = {"data": images.LABEL}
    return Model(name, layers, batch, functional.cross_entropy, "images/s", labels)
