"""Recipes, learning rates and optimizers."""

import pytest

from repro.train.recipe import Recipe, imagenet, translation


def test_the_image_recipe_at_the_authors_size():
    """Batch 32 on ImageNet: the defaults of the authors' code."""
    recipe = imagenet(32, 1281167)
    epoch = 1281167 / 32
    assert (recipe.lr, recipe.momentum) == (0.015, 0.9)
    assert (recipe.square_decay, recipe.decay) == (0.9, 0.97)
    assert (recipe.warm_up, recipe.decay_steps) == (round(3 * epoch), round(2.4 * epoch))
    assert recipe.learning_rate(0) == pytest.approx(0.015 * 1e-4)  # the floor
    assert recipe.learning_rate(recipe.warm_up // 2) == pytest.approx(0.0075, rel=1e-4)
    # 3 epochs of warm-up end after the first stair of 2.4.
    assert recipe.learning_rate(recipe.warm_up) == pytest.approx(0.015 * 0.97)
    assert recipe.learning_rate(10 * recipe.decay_steps) == pytest.approx(0.015 * 0.97**10)
    assert recipe.learning_rate(10**9) == pytest.approx(0.015 * 1e-4)
    assert imagenet(256, 1281167).lr == pytest.approx(8 * 0.015)


def test_the_translation_recipe_is_the_transformers():
    """d^-0.5 min(step^-0.5, step warm_up^-1.5), with steps from 1."""
    d, warm_up = 512, 4000
    recipe = translation(lr=(d * warm_up) ** -0.5, warm_up=warm_up)
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = d**-0.5 * min(step**-0.5, step * warm_up**-1.5)
        assert recipe.learning_rate(step - 1) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"optimizer": "rmsprob"}, "optimizer = 'rmsprob': .*did you mean 'rmsprop'"),
        ({"lr": float("nan")}, "lr = nan"),
    ],
)
def test_a_wrong_value_is_one_line(change, problem):
    with pytest.raises(ValueError, match=f"^{problem}.*$"):
        Recipe(**{"lr": 0.1, **change})
