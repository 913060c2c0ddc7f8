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
    """A sequence of layers, and all that is needed to train it.

    A layer is a zero-argument factory, or a user's module, that maps one value, a tensor or a
    nested tuple of tensors, to one value. Called under `torch.device("meta")`, a factory allocates
    no memory.

    Attributes:
        name: as given to `build`, which gives a user's own model the name by which it was found.
        layers: in their order; each gets what the one before it returns, the first the inputs.
        batch: (N, seed) -> (inputs, targets), the same small real data for the same seed.
        loss: (output of the last layer, targets) -> a mean, such as that over the examples.
        unit: of the throughput, which is examples a second: "images/s" or "sequences/s".
        labels: facts that a result must state, such as where the data are from.
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

    Its data are the digits. Where there are fewer than ten classes, they count modulo their number.
    """
    batch = partial(images.batch, image, classes)
    labels = {"data": images.LABEL}
    return Model(name, layers, batch, functional.cross_entropy, "images/s", labels)
