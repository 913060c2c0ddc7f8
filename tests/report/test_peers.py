"""Ours and other libraries: whether both are right, what is compared, and when one is faster."""

from math import nan

import pytest
from scipy.stats import binom

from repro.experiments.peers import report as peers
from repro.harness.frame import controls_frame, select

AGAIN, NOISY, SLOWER = (0.99, 1.02), (0.8, 1.5), (0.7, 0.73)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [
        ((1.2, 1.3), AGAIN, "faster"),
        ((0.75, 0.85), AGAIN, "slower"),
        ((1.2, 1.3), NOISY, "within noise"),
        # Whichever of both runs is divided.
        ((1.2, 1.3), SLOWER, "within noise"),
        ((0.75, 0.85), NOISY, "within noise"),
        ((0.97, 0.99), AGAIN, "within noise"),
        ((1.2, 1.3), (nan, nan), "too few blocks"),
        ((nan, nan), AGAIN, "too few blocks"),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(ratio, noise, verdict):
    assert peers.verdict((1.0, *ratio), (1.0, *noise)) == verdict


@pytest.mark.parametrize("name", ["peers", "methods"])
def test_a_run_again_is_as_fast(reference, name):
    """Without this no ratio would say anything."""
    again = select(controls_frame(reference, name), control="again")
    assert again["step"].between(0.95, 1.05).all()
    differ = (again["low"] > 1) | (again["high"] < 1)
    # A difference is found in 6 % of equal runs, see test_statistics.
    assert binom.sf(differ.sum() - 1, len(again), 0.06) > 0.01
