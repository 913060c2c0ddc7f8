"""How long runs take, as seen since the start."""

import pytest

from repro.harness.pace import TimeLeft, start_up


def test_a_cold_run_is_not_taken_for_the_pace_of_all():
    """As the first of 200 runs that imports what all need: it takes 18 s, most are modelled."""
    left = TimeLeft([3.0] * 20 + [0.3] * 200, start_up(2, 2))
    announced = left.seconds
    assert announced == pytest.approx(20 * 3.0 + 200 * 0.3 + start_up(2, 2))
    left.started()
    left.done(3.0, 18.0)
    assert announced / 2 < left.seconds < 1.5 * announced
    left.done(0.3, None)  # left out
    fresh = TimeLeft([0.0, 0.0], 0.0)
    assert fresh.seconds == 0.0
    fresh.done(0.0, 7.0)
    assert fresh.seconds == 7.0
    assert TimeLeft([2.0, 4.0, 0.0], 1.0).seconds == 10.0  # the last one as the others
