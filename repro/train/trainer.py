"""The training loop of the experiments on a running `Pipeline`: updates by a recipe, evaluation.

Every rank makes the same calls. Only the first stage needs inputs, and only the last one targets.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repro.data.batches import Batches
from repro.gpipe import Pipeline
from repro.gpipe.core.loss import Loss
from repro.gpipe.tree import batch_size
from repro.train.average import averaged, in_place_of_weights
from repro.train.evaluation import evaluate
from repro.train.recipe import Recipe


class Step(NamedTuple):
    """One update."""

    loss: float  # mean over the mini-batch
    seconds: float  # on this rank, with the reading of the data
    examples: int  # of the mini-batch; 0 on ranks that read no data


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
        return torch.optim.Adam(groups, lr=recipe.lr, betas=betas, eps=recipe.epsilon, fused=True)
    from timm.optim.rmsprop_tf import RMSpropTF  # timm takes a second to import

    squares: Any = {"alpha": recipe.square_decay, "eps": recipe.epsilon}
    return RMSpropTF(groups, lr=recipe.lr, momentum=recipe.momentum, **squares)


class Trainer:
    """Trains a pipeline by a recipe; constructed with the same arguments on every rank.

    Attributes:
        steps: all updates so far.
        average: the moving average of this stage's weights; None if the recipe has none.
    """

    def __init__(
        self,
        pipe: Pipeline,
        loss: Loss,  # (outputs, targets) of a micro-batch -> its mean loss; or `Weighted`
        recipe: Recipe,
        batches: Batches,  # of this replica
        # What to evaluate, by name: functions like a loss. If one is named "loss", it replaces
        # `loss` there, for example to evaluate without label smoothing.
        metrics: Mapping[str, Loss] | None = None,
    ) -> None:
        self.pipe = pipe
        self.recipe = recipe
        self.batches = batches
        self.steps: list[Step] = []
        self.optimizer = make_optimizer(pipe.module, recipe)
        self.average = None if recipe.ema is None else averaged(pipe.module, recipe.ema)
        self._loss = loss
        self._metrics = {"loss": loss, **(metrics or {})}

    def run(self, steps: int) -> None:
        """Train until `steps` updates are done in all, including those of earlier calls.

        Raises:
            NonFiniteError: on every rank, if the loss or a gradient is inf or nan.
        """
        while len(self.steps) < steps:
            self._do_step()

    def _do_step(self) -> None:
        started = time.perf_counter()
        inputs, targets, examples = None, None, 0
        if self.pipe.is_first or self.pipe.is_last:
            # Both ends read the same mini-batch, so that inputs meet their own targets.
            inputs, targets = self.batches.next()
            examples = batch_size(inputs) * self.pipe.replicas
        for group in self.optimizer.param_groups:
            group["lr"] = self.recipe.learning_rate(len(self.steps))
        inputs = inputs if self.pipe.is_first else None
        targets = targets if self.pipe.is_last else None
        loss = self.pipe.train_step(inputs, targets, self._loss, self.optimizer).loss
        if self.average is not None:
            self.average.update_parameters(self.pipe.module)
        self.steps.append(Step(loss, time.perf_counter() - started, examples))

    def evaluate(self, batches: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Means of the loss and of the metrics over some batches; call it on every rank.

        If there is a moving average, it is evaluated instead of the weights; see
        `repro.train.evaluation.evaluate`.
        """
        average = self.average
        module = self.pipe.module
        with nullcontext() if average is None else in_place_of_weights(average, module):
            return evaluate(self.pipe, batches, self._metrics)

    def start_from(self, weights: Mapping[str, Tensor]) -> None:
        """Take all layers but the last from another training; call it before the first step.

        The paper fine-tunes so: a new softmax layer, and all other layers from ImageNet. `weights`
        is the state dict of the unsplit model. Every rank makes this call.
        """
        last = f"{self.pipe.layer_names[-1]}."
        here = self.pipe.module.state_dict()
        own = {name: value for name, value in here.items() if name.startswith(last)}
        rest = {name: weights[name] for name in here.keys() - own.keys()}
        self.pipe.module.load_state_dict(own | rest)
        if self.recipe.ema is not None:
            self.average = averaged(self.pipe.module, self.recipe.ema)
