"""The learning rate, a pure function of the recipe and the number of the step."""

import math

from repro.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The learning rate of a step; `step` counts the updates before it."""
    lr = max(_scheduled(recipe, step), recipe.floor)
    return recipe.lr * lr


def _scheduled(recipe: Recipe, step: int) -> float:
    """The share of the peak, without the floor."""
    if recipe.schedule == "inverse-sqrt":
        # The Transformer counts from 1, and its warm-up ends where the two curves meet.
        peak = max(recipe.warm_up, 1)
        return min((step + 1) / peak, math.sqrt(peak / (step + 1)))
    if step < recipe.warm_up:
        return step / recipe.warm_up  # as in TensorFlow's code the first step has the floor
    if recipe.schedule == "exponential":
        return recipe.decay ** (step // recipe.decay_steps)
    return 1.0
