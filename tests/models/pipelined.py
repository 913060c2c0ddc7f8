"""What stage processes run for tests of models; at module level so that they can import it."""

from functools import partial

import torch
from torch import Tensor, nn

from repro.gpipe import Pipeline
from repro.gpipe.core.compare import Comparison
from repro.gpipe.tree import map_leaves
from repro.models import build

M, N = 2, 4
AMOEBANET = {"L": 3, "D": 16, "image": 32, "num_classes": 10, "dropout": 0.0}
TINY = {"d": 16, "H": 32, "V": 64, "T": 10, "dropout": 0.0}
MODELS = {
    "amoebanet-d": AMOEBANET,
    "transformer": {**TINY, "L": 2, "heads": 2},
    "translation": {**TINY, "L": 1, "A": 2, "head_dim": 12, "S": 9},
    "unet": {"B": 1, "C": 2, "image": 64, "dropout": 0.0},
    "timm:resnet10t": {"image": 32, "num_classes": 10},
}


def whole(name: str, **arguments) -> nn.Sequential:
    """The unsplit model."""
    torch.manual_seed(0)
    return nn.Sequential(*[factory() for factory in build(name, **arguments).layers])


def doubled(factory):
    """A layer in float64: with few examples, batch norm turns rounding into other gradients."""
    return factory().double()


def batch(model, examples, seed):
    """A mini-batch whose numbers, but not its tokens, are float64."""
    return map_leaves(
        Tensor, lambda t: t.double() if t.is_floating_point() else t, model.batch(examples, seed)
    )


def cut_in_two() -> dict[str, Comparison]:
    """Each model cut in two, compared with the model in one piece."""
    found = {}
    for name, arguments in MODELS.items():
        model = build(name, **arguments)
        layers = [partial(doubled, layer) for layer in model.layers]
        pipe = Pipeline(layers, 2, M, balance="uniform")
        inputs, targets = batch(model, N, 0)
        found[name] = pipe.compare(inputs, targets, model.loss)
    return found
