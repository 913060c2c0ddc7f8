import math
from collections.abc import Hashable

import pytest

from repro.harness.statistics import interval, ratio


def test_ratios_are_taken_inside_rounds_that_have_both():
    """The machine slows down threefold in round 2; inside each round the ratio is 2."""
    base: dict[Hashable, float] = {1: 1.0, 2: 1 / 3, 3: 1.0, 4: 1.0, 5: 1.0}
    twice: dict[Hashable, float] = {n: 2 * each for n, each in base.items()}
    assert ratio(twice, base) == (2, 2, 2, 5)
    assert ratio(twice | {6: 9.0}, base | {7: 9.0}) == (2, 2, 2, 5)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_too_few_rounds_have_no_interval_and_none_no_median(values: list[float]):
    assert interval(values)[0] == 2.0
    assert all(math.isnan(x) for x in interval(values)[1:])
    assert all(math.isnan(x) for x in interval([]))
