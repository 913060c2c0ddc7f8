"""Cuts: the rules against brute force, measured costs of layers, and what was chosen."""

import time
from functools import partial
from itertools import accumulate, combinations, pairwise

import pytest
import torch
from examples import Apply, refused
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from repro.gpipe import PipelineConfig
from repro.gpipe.partition.balance import Cut, choose
from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.gpipe.partition.layer_profile import measure
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
    layers, total = len(costs), additive(costs)
    sends = st.lists(st.integers(0, 20), min_size=layers + 1, max_size=layers + 1)
    send = draw(sends | st.just([0] * (layers + 1)))
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


@pytest.mark.parametrize("rule", [smallest_largest, minimum_variance])
def test_rounding_does_not_choose_among_equal_cuts(rule):
    for layers, stages in ((8, 3), (11, 3), (13, 2), (19, 4)):
        assert rule(additive([0.1] * layers), layers, stages) == rule(
            additive([1] * layers), layers, stages
        )


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
        refused("stages=.*: the model has 2 layers", partitioner, additive([1, 1]), 2, stages)
    for wrong in (float("nan"), -1.0, float("inf"), 1e308, 10**400, None, "3"):
        with pytest.raises(ValueError, match=r"balance: the cost of a stage of layers 1 to 1 is"):
            partitioner(lambda a, b, cost=wrong: cost if (a, b) == (1, 2) else 1.0, 3, 2)


CPU = torch.device("cpu")


def wait(x, seconds):
    """Waits in F, and three times as long in B."""
    time.sleep(seconds)
    if x.requires_grad:
        x.register_hook(lambda _: time.sleep(3 * seconds))
    return x.clone()


def fan(x):
    """Four tensors; one of them requires a gradient, if the input does."""
    ids = torch.zeros(5, dtype=torch.int64)
    return {"x": x, "ids": ids, "more": [x.detach(), x > 0], "name": "fan", "n": None}


def pick(value):
    return value["x"] + value["more"][0] * value["ids"].sum()


def test_f_r_and_b_apart():
    layers = [nn.Linear(4, 4), Apply(partial(wait, seconds=0.02)), nn.Tanh()]
    profile = measure(layers, torch.zeros(2, 4), CPU)
    assert profile.recompute == profile.forward
    assert all(len(kind) == 3 for kind in (profile.forward, profile.backward))
    assert min(*profile.forward, *profile.backward) > 0
    assert profile.forward[1] >= 0.02
    assert profile.backward[1] >= 0.06


def test_what_crosses():
    """Behind layer 1: [2, 4] floats. Behind 2: twice that, 5 int64, 8 booleans, 1 gradient."""
    frozen = nn.Embedding(5, 4).requires_grad_(False)
    layers = [frozen, nn.Linear(4, 4), Apply(fan), Apply(pick), nn.Linear(4, 1)]
    tokens = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():  # the user's mode does not matter
        profile = measure(layers, tokens, CPU)
    assert profile.activation_bytes == (32, 32, 32 + 40 + 32 + 8, 32)
    assert profile.gradient_bytes == (0, 32, 32, 32)


def test_an_error_names_the_layer():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        measure([nn.ReLU(), nn.Linear(3, 3)], torch.zeros(2, 4), CPU)
    assert caught.value.__notes__ == ["layers[1]: Linear failed on the sample"]


def test_a_stage_pays_for_its_layers_and_for_what_it_sends():
    profile = Profile((1.0, 2.0, 4.0), (1.0, 2.0, 4.0), (2.0, 4.0, 8.0), (100, 300), (50, 0))
    free = profile.cost(LinkSpeed(), recompute=True)
    assert [free(0, 1), free(1, 2), free(0, 3)] == [4.0, 8.0, 28.0]
    assert profile.cost(LinkSpeed(), recompute=False)(1, 3) == 18.0
    link = LinkSpeed(latency=0.5, bytes_per_second=100.0, overlap=False)
    cost = profile.cost(link, recompute=True)
    assert [cost(0, 3), cost(0, 1), cost(1, 2), cost(1, 3)] == [28.0, 5.5, 12.5, 25.0]
    assert cost(2, 3) == 16.0, "no gradient crosses, so no message does"
    # Where sending takes no time of its own, only a slower message counts.
    cost = profile.cost(LinkSpeed(latency=0.5, bytes_per_second=100.0), recompute=True)
    assert cost(0, 1) == 1.5 + 3.0, "F takes 1.0 and its message 1.5"
    assert [cost(1, 2), cost(1, 3)] == [3.5 + 6.0, 6.0 + 18.0]


def no_measurement():
    pytest.fail("measured")


def test_parameters_are_counted_without_memory():
    million = partial(nn.Linear, 1_000_000, 1_000_000, bias=False)
    layers = [million, nn.ReLU, lambda: nn.Linear(2, 3), nn.ReLU()]
    cut = choose(layers, PipelineConfig(2, 2), no_measurement)
    assert cut == Cut((2, 2), "by parameters (smallest-largest)", (1e12, 9), "parameters")
    words = "by parameters (smallest-largest): 1e+12, 9 parameters, predicted imbalance 100.0%"
    assert str(cut) == f"2+2 layers {words}"


def test_time_counts_what_is_sent():
    """2+1 would be even without the ten bytes behind layer 1."""
    profile = Profile((1.0, 2.0, 3.0), (0.0,) * 3, (2.0, 4.0, 6.0), (1, 10), (0, 0))
    link = LinkSpeed(latency=0.5, bytes_per_second=1.0, overlap=False)
    cost = profile.cost(link, recompute=False)
    cut = choose([nn.ReLU] * 3, PipelineConfig(2, 2, balance="time"), lambda: cost)
    assert choose([nn.ReLU], PipelineConfig(1, 2, balance="time"), no_measurement)
    assert (cut.counts, cut.costs) == ((1, 2), (4.5, 15.0))
