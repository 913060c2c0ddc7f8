"""The methods side by side: what they send, and how long their schedules idle."""

import pytest

from repro.experiments.methods import report as methods
from repro.experiments.methods.runs import SIMULATED_M, K
from repro.harness.text import percent
from repro.paper import theory
from repro.report.style import styled

IDLE = {
    "naive": 1 - 1 / K,
    "gpipe": theory.bubble_over_total(K, SIMULATED_M),
    "1f1b": theory.bubble_over_total(K, SIMULATED_M),
    # Each of a rank's two stages takes half as long (arXiv:2104.04473, section 2.2).
    "interleaved": (K - 1) / (2 * SIMULATED_M + K - 1),
    # F, I and W take equally long (arXiv:2401.10241, Table 2).
    "zero-bubble": (K - 1) / (3 * SIMULATED_M + K - 1),
}


def test_schedules_on_one_clock_idle_as_long_as_their_formulas_say(reference):
    with styled():
        figure = methods.on_one_clock(reference)
        assert figure is not None
        titles = [axes.get_title(loc="left").partition(";")[0] for axes in figure.axes]
    assert titles == [f"{name}: {percent(share)} idle" for name, share in IDLE.items()]


def test_what_is_counted_on_two_devices_is_what_is_measured(reference):
    lines = methods.traffic(reference).data
    assert len(lines) == 7
    measured = lines[methods.ON_TWO].astype(float)
    assert lines[methods.COUNTED_ON_TWO].tolist() == pytest.approx(measured.tolist(), rel=0.01)
