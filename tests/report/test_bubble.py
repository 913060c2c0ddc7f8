"""The bubble's arithmetic; its tables are those of the reference."""

import pytest

from experiments.bubble.report import NEGLIGIBLE, least_negligible_m
from repro.paper import theory


@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_the_least_m_with_a_negligible_bubble(K):
    M = least_negligible_m(K)
    assert theory.bubble(K, M, "early") <= NEGLIGIBLE < theory.bubble(K, M - 1, "early")
