"""Recipes: how weights are updated, with the settings of the paper's two kinds of experiments.

A recipe counts in steps; a step is one update. The learning rate depends only on the number of the
step, so there is no scheduler with a state.
"""

import math
from typing import Annotated, Any, Literal

from annotated_types import Interval
from pydantic import ConfigDict, SerializerFunctionWrapHandler, model_serializer

from repro.io.explain import Frozen

Share = Annotated[float, Interval(ge=0, le=1)]
Positive = Annotated[float, Interval(ge=0)]


class Recipe(Frozen):
    """How weights are updated; a value that is not allowed is a one-line ValueError."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    lr: Positive  # the learning rate at its peak
    # "rmsprop" is timm's RMSpropTF, which computes what TensorFlow's RMSProp does.
    optimizer: Literal["rmsprop", "adam", "sgd"] = "sgd"
    momentum: Share = 0.9  # of rmsprop and sgd; adam's first beta
    square_decay: Share = 0.9  # decay of rmsprop's mean square; adam's second beta
    epsilon: Positive = 1e-8  # added to the mean square (rmsprop) or to its root (adam)
    # "exponential": `decay` every `decay_steps`, in stairs; "inverse-sqrt": the peak at `warm_up`,
    # then falling with the root of the step.
    schedule: Literal["constant", "exponential", "inverse-sqrt"] = "constant"
    warm_up: Annotated[int, Interval(ge=0)] = 0  # steps in which the learning rate rises from 0
    decay: Share = 0.97
    decay_steps: Annotated[int, Interval(ge=1)] = 1
    stable: Annotated[int, Interval(ge=0)] = 0  # steps at the peak before an exponential fall
    floor: Share = 0.0  # lowest learning rate, as a share of `lr`
    weight_decay: Positive = 0.0  # of matrices and convolutions: added to the gradient, x weight
    label_smoothing: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    ema: Share | None = None  # decay of the moving average of the weights, which is evaluated
    # Recorded runs have these two, and their ids depend on all fields.
    clip: None = None
    precision: Literal["float32"] = "float32"

    @model_serializer(mode="wrap")
    def _without_zero(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Recorded runs are older than `stable`."""
        fields = plain(self)
        return fields if self.stable else {k: v for k, v in fields.items() if k != "stable"}

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step; `step` is the number of updates before it."""
        share = 1.0
        if self.schedule == "inverse-sqrt":
            # The Transformer counts from 1, and its warm-up ends at the crossing of the curves.
            peak = max(self.warm_up, 1)
            share = min((step + 1) / peak, math.sqrt(peak / (step + 1)))
        elif step < self.warm_up:
            share = step / self.warm_up  # so the first step has the floor, as in TensorFlow's code
        elif self.schedule == "exponential":
            share = self.decay ** (max(0, step - self.stable) // self.decay_steps)
        return self.lr * max(share, self.floor)


def imagenet(N: int, examples: int) -> Recipe:
    """The recipe of the paper's image models, for a training set of so many examples.

    The paper takes the hyper-parameters of Real et al. (arXiv:1802.01548) and prints none. These
    are the defaults of the authors' code for TPUs (tensorflow/tpu, amoeba_net_model.py): RMSProp
    with decay 0.9, momentum 0.9 and epsilon 1.0; 0.97 every 2.4 epochs, in stairs; a floor of
    0.0001; 3 epochs of warm-up; label smoothing 0.1; weight decay 4e-5; a moving average of 0.9999.

    The learning rate there is 0.015 with a mini-batch of 32. Scaling it with N is our choice. The
    code's command line has 0.64 with a mini-batch of 256 and another decay. As in that command
    line, gradients are not clipped, and weight decay applies to the weights of convolutions and
    classifiers.
    """
    epoch = examples / N
    return Recipe(
        lr=0.015 * N / 32,
        optimizer="rmsprop",
        epsilon=1.0,
        schedule="exponential",
        warm_up=round(3 * epoch),
        decay_steps=max(1, round(2.4 * epoch)),
        floor=1e-4,
        weight_decay=4e-5,
        label_smoothing=0.1,
        ema=0.9999,
    )


def translation(lr: float = 1e-3, warm_up: int = 4000) -> Recipe:
    """The recipe of the translation models.

    The paper prints no optimizer for translation. Ours is that of the Transformer (Vaswani et al.,
    arXiv:1706.03762, section 5.3), which the paper's models follow: Adam with betas 0.9 and 0.98
    and epsilon 1e-9, inverse square root, 4000 steps of warm-up, label smoothing 0.1. Its formula
    gives a peak of 0.0007 for a width of 512.
    """
    return Recipe(
        lr=lr,
        optimizer="adam",
        square_decay=0.98,
        epsilon=1e-9,
        schedule="inverse-sqrt",
        warm_up=warm_up,
        label_smoothing=0.1,
    )
