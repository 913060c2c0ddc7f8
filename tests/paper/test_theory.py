"""The closed forms against the paper's statements and the exact walker."""

from fractions import Fraction

import pytest

from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.paper import theory


def test_bubble_of_k4_m16_is_3_of_19():
    assert theory.bubble_over_total(4, 16) == pytest.approx(float(Fraction(3, 19)))
    assert theory.bubble_over_work(4, 16) == pytest.approx(3 / 16)


@pytest.mark.parametrize("K", [1, 2, 4, 8])
@pytest.mark.parametrize("M", [1, 4, 32])
def test_early_form_is_the_gpipe_schedule_walked(K, M):
    timeline = replay(make_schedule("gpipe", K, M), lambda action: theory.UNIT_COSTS[action.kind])
    assert timeline.step_time == pytest.approx(theory.step_time(K, M, "early"))
    assert timeline.bubble_over_total == pytest.approx(theory.bubble(K, M, "early"))
    kept = replay(make_schedule("gpipe", K, M, "never"), lambda a: theory.UNIT_COSTS[a.kind])
    assert kept.step_time == theory.step_time(K, M, "plain", R=0)
    assert kept.step_time == theory.step_time(K, M, "early", R=0)
    assert theory.speedup_over_k1(K, M, "early") == pytest.approx(4 * K * M / (4 * M + 3 * (K - 1)))
