"""Replicas: how gradients add up; test_compare.py has what they train."""

import pytest
import torch
from copies import CHANGES, D, M, changed, everything

from repro.gpipe import launch


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=D)


def test_buckets_are_summed_while_the_last_backward_runs(ran):
    """Last layers first, and in the same order on both replicas."""
    events = ran[0]["bucketed"]
    assert events == ran[1]["bucketed"]
    ends = [n for n, event in enumerate(events) if event == "B ends"]
    first = events.index("B begins")
    sums = [n for n, event in enumerate(events) if isinstance(event, int) and n > first]
    assert len(ends) == M
    assert not [n for n in sums if n < ends[-2]], "no gradient is final before the last backward"
    assert len([n for n in sums if n < ends[-1]]) >= 3, "one for each layer at least"


@pytest.mark.parametrize("case", CHANGES)
def test_parameters_that_are_new_are_summed_too(ran, case):
    """Also parameters that weight norm, pruning or the user replaced after the build."""
    losses, weights = changed(case, 1)
    first, second = (found[case] for found in ran)
    assert first[0] == second[0]
    assert first[0] == pytest.approx(losses, rel=1e-5)
    assert weights.keys() == first[1].keys()
    for key, value in weights.items():
        assert torch.equal(first[1][key], second[1][key]), key
        torch.testing.assert_close(first[1][key], value, rtol=1e-5, atol=1e-6)
