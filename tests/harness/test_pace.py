"""Estimates of the time left."""

import pytest

from repro.harness.pace import Kind, TimeLeft

MEASURED, SIMULATED = Kind("a", "a", "measured"), Kind("a", "a", "simulated")


def test_nothing_is_estimated_until_a_timed_run_of_each_kind_is_planned_or_has_ended():
    left = TimeLeft([(SIMULATED, 0.0)] * 10 + [(MEASURED, 0.0)] * 3)
    left.done(SIMULATED, 0.5)
    assert left.seconds is None
    left.done(MEASURED, None)  # left out
    assert left.seconds is None
    left.done(MEASURED, 99.0)
    assert left.seconds == pytest.approx(9 * 0.5 + 99.0)
    assert TimeLeft([(SIMULATED, 0.0), (MEASURED, 7.0)]).seconds == 7.0


def test_a_cold_run_is_not_taken_for_the_pace_of_all():
    """As the first of 20 runs that imports what all need: it takes 18 s."""
    left = TimeLeft([(MEASURED, 3.0)] * 20)
    assert left.seconds == pytest.approx(20 * 3.0)
    left.done(MEASURED, 18.0)
    assert left.seconds is not None
    assert 20 * 3.0 < left.seconds < 2 * 20 * 3.0
