"""What stage processes run for tests of models; at module level so that they can import it."""

from functools import partial

import torch
from torch import Tensor, nn

from repro.gpipe import PipelineConfig
from repro.gpipe.tree import map_leaves, split
from repro.methods import make
from repro.methods.checks import Check, examine
from repro.methods.method import Setup
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


def cut_in_two() -> dict[str, dict[str, Check]]:
    """Every model cut in two, held against the model in one piece."""
    checks = {}
    for name, arguments in MODELS.items():
        model = build(name, **arguments)
        draw = partial(batch, model)
        setup = Setup(
            [partial(doubled, layer) for layer in model.layers],
            model.loss,
            PipelineConfig(2, M, balance="uniform"),
            split(draw(N, 0)[0], M)[0],
            torch.device("cpu"),
            partial(torch.optim.SGD, lr=1.0),
        )
        checks[name] = examine(partial(make, "repro"), setup, draw, N)
    return checks
