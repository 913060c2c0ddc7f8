"""The partitioner against brute force over every possible cut."""

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.partition import by_cost, check_balance, imbalance, partition


def largest(costs, balance):
    ends = [sum(balance[:n]) for n in range(len(balance) + 1)]
    return max(sum(costs[a:b]) for a, b in pairwise(ends))


def brute(costs, stages):
    inner = combinations(range(1, len(costs)), stages - 1)
    return min(max(sum(costs[a:b]) for a, b in pairwise([0, *cut, len(costs)])) for cut in inner)


@given(st.data())
def test_equals_brute_force(data):
    costs = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=9))
    stages = data.draw(st.integers(1, len(costs)))
    balance = by_cost(costs, stages)
    assert sum(balance) == len(costs)
    assert len(balance) == stages
    assert min(balance) >= 1
    assert largest(costs, balance) == brute(costs, stages)


def test_interval_costs_need_not_add_up():
    """A stage also pays for what it receives: the cut moves to the cheap boundary."""
    boundary = [0, 9, 1, 9]
    assert partition(lambda a, b: boundary[a] + (b - a) * 4, 4, 2) == [2, 2]


def test_k_greater_than_l():
    with pytest.raises(ValueError, match=r"stages=3: the model has 2 layers .* between 1 and 2"):
        by_cost([1, 1], 3)


@pytest.mark.parametrize("balance", [[1, 2], [4], [0, 4], [5, -1]])
def test_explicit_balance_is_checked(balance):
    with pytest.raises(ValueError, match=r"balance=\[.*needs 2 positive numbers that sum to the model's 4 layers"):
        check_balance(balance, 4, 2)


def test_imbalance():
    assert imbalance([1, 1, 2], [2, 1]) == 0.0
    assert imbalance([1, 1, 4], [2, 1]) == pytest.approx(1 / 3)
    assert imbalance([0, 0], [1, 1]) == 0.0
