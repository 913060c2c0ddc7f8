"""Verdicts beside other libraries, and that each peer has ours beside it."""

from math import nan

import pytest

from experiments.peers import report as peers

AGAIN, NOISY, SLOWER = (0.99, 1.02), (0.8, 1.5), (0.7, 0.73)


@pytest.mark.parametrize(
    ("ratio", "noise", "rounds", "verdict"),
    [
        ((1.2, 1.3), AGAIN, 5, "faster"),
        ((0.75, 0.85), AGAIN, 5, "slower"),
        ((1.2, 1.3), NOISY, 5, "not clear of A/A"),
        ((1.2, 1.3), SLOWER, 5, "not clear of A/A"),  # whichever of both runs is divided
        ((0.75, 0.85), NOISY, 5, "not clear of A/A"),
        ((0.98, 1.01), AGAIN, 5, "not clear of A/A"),
        ((1.2, 1.3), (nan, nan), 5, "no A/A interval"),
        ((nan, nan), AGAIN, 4, "too few rounds"),
        ((nan, nan), AGAIN, 0, ""),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(ratio, noise, rounds, verdict):
    names = ("low", "high", "noise_low", "noise_high")
    line = dict(zip(names, (*ratio, *noise), strict=True))
    assert peers.verdict(line | {"rounds": rounds}) == verdict
