import math
import random
from collections.abc import Hashable

import pytest

from repro.harness.statistics import interval, interval_of_sets, ratio


def test_ratios_are_taken_inside_rounds_that_have_both():
    """The machine slows down threefold in round 2; inside each round the ratio is 2."""
    base: dict[Hashable, list[float]] = {1: [1.0], 2: [1 / 3], 3: [1.0], 4: [1.0], 5: [1.0]}
    twice: dict[Hashable, list[float]] = {n: [2 * each[0]] for n, each in base.items()}
    assert ratio(twice, base) == (2, 2, 2, 5)
    assert ratio(twice | {6: [9.0]}, base | {7: [9.0]}) == (2, 2, 2, 5)


def test_ratios_are_taken_inside_blocks_and_of_each_where_the_other_was_measured_in_turn():
    base: dict[Hashable, list[float]] = {1: [1.0, 5.0, 2.0], 2: [3.0, 1.0]}
    assert ratio({1: [2.0, 10.0, 4.0], 2: [6.0, 2.0]}, base) == (2, 2, 2, 5)
    assert ratio({1: [4.0], 2: [6.0, 2.0]}, base)[::3] == (2, 5)  # 4, 4/5, 2; 2, 2


def test_the_interval_holds_what_differs_from_set_to_set():
    """Sets are off by 5 %, blocks by 5 % more; one bootstrap of all blocks is too narrow."""
    rng, within, too_narrow = random.Random(0), 0, 0
    for _ in range(20):
        offsets = [rng.gauss(1, 0.05) for _ in range(8)]
        sets = [[rng.gauss(offset, 0.05) for _ in range(20)] for offset in offsets]
        _, low, high = interval_of_sets(sets)
        within += low <= 1 <= high
        _, low, high = interval([value for each in sets for value in each])
        too_narrow += not low <= 1 <= high
    assert within >= 17
    assert too_narrow >= 5


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_too_few_rounds_have_no_interval_and_none_no_median(values: list[float]):
    assert interval(values)[0] == 2.0
    assert all(math.isnan(x) for x in interval(values)[1:])
    assert all(math.isnan(x) for x in interval([]))
