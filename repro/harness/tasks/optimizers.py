"""The optimizers that a spec can name."""

from collections.abc import Callable
from functools import partial

import torch

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    # Two slots for each parameter, as TensorFlow's RMSProp always has.
    "rmsprop-momentum": partial(torch.optim.RMSprop, momentum=0.9),
    "adam": torch.optim.Adam,
}
