"""How long runs take: recorded, estimated, and as seen since the start."""

import pytest
from crew import spec

from repro.harness.pace import UNTIMED, Kind, TimeLeft, of_kinds, start_up
from repro.harness.schema import RoundEvent
from repro.harness.spec import Experiment, Group

TIMED, MODELLED = Kind("tiny", "timed", "measured"), Kind("tiny", "modelled", "simulated")


def paces(minutes: float, *seconds: int) -> dict[Kind, float]:
    """Of an experiment with so many minutes, and recorded rounds of its timed runs."""
    simulated = [spec(1, M, fidelity="simulated", profile="v100") for M in (1, 4)]
    groups = (
        Group(name="timed", runs=(spec(1, 1), spec(1, 4))),
        Group(name="modelled", runs=tuple(simulated)),
    )
    of = Experiment(name="tiny", title="", question="", minutes={"smoke": minutes}, groups=groups)
    events = [
        RoundEvent.model_construct(
            group="timed",
            records={"a": {}, "b": {}},
            started="2026-01-01T00:00:00+00:00",
            ended=f"2026-01-01T00:00:{each:02d}+00:00",
        )
        for each in seconds
    ]
    fidelities = {"a": "measured", "b": "measured", "c": "simulated", "d": "simulated"}
    return of_kinds(of, "smoke", {"a": 5, "b": 5, "c": 1, "d": 1}, fidelities, events)


def test_a_pace_is_estimated_until_it_is_recorded():
    assert paces(0) == {TIMED: 0.0, MODELLED: UNTIMED}
    assert paces(1) == {TIMED: pytest.approx((60 - 2 * UNTIMED) / 10), MODELLED: UNTIMED}
    assert paces(1, 20, 30, 58)[TIMED] == 15.0, "the median of the rounds"


def test_a_cold_run_is_not_taken_for_the_pace_of_all():
    """As the first of 200 runs that imports what all need: it takes 18 s, most are modelled."""
    outstanding = [TIMED] * 20 + [MODELLED] * 200
    left = TimeLeft(outstanding, {TIMED: 3.0, MODELLED: 0.3}, start_up(2, 2))
    announced = left.seconds
    assert announced == pytest.approx(20 * 3.0 + 200 * 0.3 + start_up(2, 2))
    left.started()
    left.done(TIMED, 18.0)
    assert announced / 2 < left.seconds < 1.5 * announced
    left.done(MODELLED, None)  # left out
    fresh = TimeLeft([TIMED] * 2, {}, 0.0)
    assert fresh.seconds == 0.0
    fresh.done(TIMED, 7.0)
    assert fresh.seconds == 7.0
