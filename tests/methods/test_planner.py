"""PipeDream's planner, held against every cut with every number of replicas."""

from itertools import combinations, pairwise, product
from math import inf

import pytest

from repro.methods.planner import plan

SECONDS = [1.0, 4.0, 2.0, 1.0, 5.0]
DEVICES = 4


def slowest(cut, replicas, boundary_s, gradients_s):
    found = 0.0
    for (first, end), r in zip(pairwise(cut), replicas, strict=True):
        sums = 2 * (r - 1) / r * sum(gradients_s[first:end])
        found = max(found, sum(SECONDS[first:end]) / r, sums, boundary_s[first - 1] * (first > 0))
    return found


def test_plans_by_hand():
    """Eight seconds of work: replicas divide them, but with slow sums each layer stays alone."""
    seconds, free = [1.0, 1.0, 2.0, 4.0], [0.0] * 4
    assert plan(seconds, free, free, 4) == (2.0, ((4, 4),))
    assert plan(seconds, free, [9.0] * 4, 4) == (4.0, ((1, 1),) * 4)
    assert plan(seconds, [9.0] * 4, free, 2) == (4.0, ((4, 2),))


@pytest.mark.parametrize("boundary", [0.0, 3.0])
@pytest.mark.parametrize("gradients", [0.0, 0.7, 4.0])
def test_no_other_plan_is_faster(boundary, gradients):
    boundary_s, gradients_s = [boundary] * 4, [gradients] * 5
    found = plan(SECONDS, boundary_s, gradients_s, DEVICES)
    best = inf
    for inner in (inner for n in range(5) for inner in combinations(range(1, 5), n)):
        cut = (0, *inner, 5)
        for counts in product(range(1, DEVICES + 1), repeat=len(cut) - 1):
            if sum(counts) == DEVICES:
                best = min(best, slowest(cut, counts, boundary_s, gradients_s))
    assert found.slowest_s == pytest.approx(best)
    layers, counts = zip(*found.stages, strict=True)
    cut = [sum(layers[:n]) for n in range(len(layers) + 1)]
    assert (cut[-1], sum(counts)) == (5, DEVICES)
    assert slowest(cut, counts, boundary_s, gradients_s) == pytest.approx(best)
