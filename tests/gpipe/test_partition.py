"""The partitioners against brute force over every possible cut."""

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.partition.partition import (
    PARTITIONERS,
    additive,
    cumulative_share,
    minimum_variance,
    smallest_largest,
)


def stage_costs(cost, counts):
    return [cost(a, b) for a, b in pairwise([0, *accumulate(counts)])]


def every_cut(layers, stages):
    for inner in combinations(range(1, layers), stages - 1):
        yield [b - a for a, b in pairwise([0, *inner, layers])]


def squares(numbers):
    return sum(n * n for n in numbers)


@st.composite
def chains(draw):
    """(cost, L, K): costs that add up, and half as much again for each boundary of a stage."""
    costs = draw(st.lists(st.integers(0, 20), min_size=1, max_size=8))
    layers = len(costs)
    send = draw(
        st.lists(st.integers(0, 20), min_size=layers + 1, max_size=layers + 1)
        | st.just([0] * (layers + 1))
    )
    total = additive(costs)
    return lambda a, b: total(a, b) + send[a] + send[b], layers, draw(st.integers(1, layers))


def by_largest(cost, counts):
    found = stage_costs(cost, counts)
    return max(found), squares(found), squares(counts)


def by_squares(cost, counts):
    return squares(stage_costs(cost, counts)), squares(counts)


@given(chains(), st.sampled_from([(smallest_largest, by_largest), (minimum_variance, by_squares)]))
def test_equals_brute_force_down_to_the_ties(chain, rule):
    cost, layers, stages = chain
    partitioner, key = rule
    counts = partitioner(cost, layers, stages)
    assert (len(counts), sum(counts), min(counts) > 0) == (stages, layers, True)
    assert key(cost, counts) == min(key(cost, other) for other in every_cut(layers, stages))


def test_the_two_rules_differ():
    """Costs 8 and 8, or 0 and 9: the largest stage prefers the first, squares the second."""
    costs = {(0, 2): 8, (2, 3): 8, (0, 1): 0, (1, 3): 9}
    assert smallest_largest(lambda a, b: costs.get((a, b), 99), 3, 2) == [2, 1]
    assert minimum_variance(lambda a, b: costs.get((a, b), 99), 3, 2) == [1, 2]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_cumulative_share_places_layer_by_layer(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    counts = cumulative_share(additive(costs), len(costs), stages)
    assert (len(counts), sum(counts), min(counts) > 0) == (stages, len(costs), True)
    if sum(costs):
        cells = [
            min(stages * sum(costs[: i + 1]) // sum(costs), stages - 1) for i in range(len(costs))
        ]
        if set(cells) == set(range(stages)):
            assert counts == [cells.count(j) for j in range(stages)]


@pytest.mark.parametrize("partitioner", PARTITIONERS.values())
def test_what_is_out_of_range(partitioner):
    for stages in (0, 3, True, 1.0, "2"):
        with pytest.raises(ValueError, match=r"stages=.*: the model has 2 layers"):
            partitioner(additive([1, 1]), 2, stages)
    for wrong in (float("nan"), -1.0, float("inf"), None, "3"):
        with pytest.raises(ValueError, match=r"balance: the cost of a stage of layers 1 to 1 is"):
            partitioner(lambda a, b, cost=wrong: cost if (a, b) == (1, 2) else 1.0, 3, 2)
