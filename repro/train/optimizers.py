"""The optimizer of a recipe, for the parameters of one stage."""

import torch
from torch import nn
from torch.optim import Optimizer

from repro.train.recipe import Recipe


def make_optimizer(module: nn.Module, recipe: Recipe) -> Optimizer:
    """An optimizer of a module's parameters; the module may have none.

    There are two parameter groups on every stage. The first one decays: parameters of two
    dimensions or more, so matrices and convolutions. Biases and norms do not decay.
    """
    parameters = list(module.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    if recipe.optimizer == "adam":
        betas = (recipe.momentum, recipe.square_decay)
        return torch.optim.Adam(groups, lr=recipe.lr, betas=betas, eps=recipe.epsilon)
    from timm.optim.rmsprop_tf import RMSpropTF  # timm takes a second to import

    return RMSpropTF(
        groups,
        lr=recipe.lr,
        alpha=recipe.square_decay,
        eps=recipe.epsilon,
        momentum=recipe.momentum,
    )
