"""In which range predicted steps lie."""

import json

import pytest

from experiments.costs import error
from repro.costs.error_bars import CALIBRATED, DATA_SHEET, FILE, RATIO, step_error


def test_the_ranges_are_those_of_recorded_steps(reference):
    """After a change of either: python -m experiments.costs.record."""
    assert json.loads(FILE.read_text("utf-8")) == error.factors(reference)
    assert 1 < RATIO < 1.5


def test_nine_of_ten_are_within_a_factor_and_half_and_twice_as_fast_are_equally_wrong():
    assert error.off(-0.5) == pytest.approx(error.off(1.0))
    assert error.nine_of_ten(range(10, 0, -1)) == 9


def test_a_range_is_that_of_where_durations_come_from():
    bars = [step_error(durations) for durations in (DATA_SHEET, CALIBRATED)]
    assert all(bar and bar.ends(bar.factor) == pytest.approx((1.0, bar.factor**2)) for bar in bars)
    assert step_error("") is None, "of fitted profiles no step was compared"
