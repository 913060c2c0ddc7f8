"""Replicas: how gradients add up; test_compare.py has what they train."""

import pytest
import torch
from copies import (
    CHANGES,
    D,
    M,
    all_changes,
    changed,
    everything,
)

from repro.gpipe import launch


@pytest.fixture(scope="module")
def ran():
    """What four processes did, rank by rank."""
    return launch(everything, stages=4)


def test_buckets_are_summed_while_the_last_backward_runs(ran):
    """Last layers first, the same order on both replicas; large buckets change no gradient."""
    events, gradients = ran[0]["bucketed", 1]
    assert events == ran[1]["bucketed", 1][0]
    ends = [n for n, event in enumerate(events) if event == "B ends"]
    sums = [
        n
        for n, event in enumerate(events)
        if isinstance(event, int) and n > events.index("B begins")
    ]
    during = [n for n in sums if ends[-2] < n < ends[-1]]
    assert len(ends) == M
    assert not [n for n in sums if n < ends[-2]], "no gradient is final before the last backward"
    assert len(during) >= 3, "one for each layer at least"
    whole = {k: v for j in range(2) for k, v in ran[j]["bucketed", 2][1].items()}
    assert gradients.keys() == whole.keys()
    assert all(torch.equal(gradients[key], whole[key]) for key in whole)


@pytest.fixture(scope="module")
def changed_on_replicas():
    """What two replicas did whose parameters changed."""
    return launch(all_changes, stages=D)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", CHANGES)
def test_parameters_that_are_new_are_summed_too(changed_on_replicas, case, late):
    """Also parameters that weight norm, pruning or the user replaced after the build."""
    losses, weights = changed(case, 1, late=late)
    first, second = (found[case, late] for found in changed_on_replicas)
    assert first[0] == second[0]
    assert first[0] == pytest.approx(losses, rel=1e-5)
    assert weights.keys() == first[1].keys()
    for key, value in weights.items():
        assert torch.equal(first[1][key], second[1][key]), key
        torch.testing.assert_close(first[1][key], value, rtol=1e-5, atol=1e-6)
