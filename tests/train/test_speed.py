import pytest
from speed import GOALS, TASKS, N, plain_loop, record, trainer_loop


def test_ratios_are_taken_in_each_round():
    rounds = [{"plain": 100.0 * n, "trainer": 98.0 * n} for n in (1, 2, 3, 4, 5)]
    first, second = GOALS
    content = record({first: {"images": rounds}, second: {"tokens": rounds[:1]}})
    images, tokens = content["comparisons"]
    assert (images["ratio"], images["low"], images["high"]) == (0.98, 0.98, 0.98)
    assert (images["plain"], images["rounds"], images["goal"]) == (300.0, 5, 0.97)
    assert tokens["unit"] == "tokens/s"
    assert tokens["low"] is None, "no interval of one round"


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_both_sides_have_the_loss_of_a_new_model(name: str):
    """Their weights and mini-batches differ, so that the losses are not equal."""
    task = TASKS[name]
    assert plain_loop(task)(1) == pytest.approx(trainer_loop(task, 1, 1, "never")(1), rel=0.2)
    assert task.data().state()["N"] == N
