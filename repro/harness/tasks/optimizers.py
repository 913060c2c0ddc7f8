"""The optimizers that a spec can name."""

from collections.abc import Callable
from functools import partial

import torch

# Without foreach, which on a GPU takes memory for a second copy of all weights.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, foreach=False),
    "rmsprop": partial(torch.optim.RMSprop, foreach=False),
    # Two slots for each parameter, as TensorFlow's RMSProp always has.
    "rmsprop-momentum": partial(torch.optim.RMSprop, momentum=0.9, foreach=False),
    "adam": partial(torch.optim.Adam, foreach=False),
}
