"""How long runs take: recorded, estimated, and as seen since the start."""

import pytest
from crew import spec

from repro.harness.pace import UNTIMED, Kind, TimeLeft, of_kinds, start_up
from repro.harness.schema import RoundEvent
from repro.harness.spec import Experiment, Group, RunSpec

FIDELITIES = {"a": "measured", "b": "measured", "c": "simulated", "d": "simulated"}
TIMED, MODELLED = Kind("tiny", "timed", "measured"), Kind("tiny", "modelled", "simulated")


def experiment(minutes: float) -> Experiment:
    simulated: list[RunSpec] = [spec(1, M, fidelity="simulated", profile="v100") for M in (1, 4)]
    groups = (
        Group(name="timed", runs=(spec(1, 1), spec(1, 4))),
        Group(name="modelled", runs=tuple(simulated)),
    )
    return Experiment(name="tiny", title="", question="", minutes={"smoke": minutes}, groups=groups)


def paces(
    minutes: float, *events: RoundEvent, rounds: dict[str, int] | None = None
) -> dict[Kind, float]:
    of = rounds or {"a": 5, "b": 5, "c": 1, "d": 1}
    return of_kinds(experiment(minutes), "smoke", of, FIDELITIES, events)


def recorded(group: str, seconds: int, *runs: str) -> RoundEvent:
    return RoundEvent(
        round="x-0001",
        group=group,
        records=dict.fromkeys(runs),
        load=None,
        spans={},
        done=[],
        replacing=[],
        commit="",
        started="2026-01-01T00:00:00+00:00",
        ended=f"2026-01-01T00:00:{seconds:02d}+00:00",
    )


def test_the_estimate_is_of_the_runs_on_a_clock():
    assert paces(1) == {TIMED: pytest.approx((60 - 2 * UNTIMED) / 10), MODELLED: UNTIMED}
    assert paces(0) == {TIMED: 0.0, MODELLED: 0.0}, "nothing is known"


def test_a_recorded_pace_is_of_its_group_and_fidelity():
    pace = paces(
        1,
        recorded("timed", 20, "a", "b"),
        recorded("timed", 30, "a", "b"),
        recorded("timed", 58, "a", "b"),
    )
    assert pace[TIMED] == 15.0, "the median of the rounds"
    assert pace[MODELLED] == UNTIMED


def test_a_cold_run_is_not_taken_for_the_pace_of_all():
    """As the first of 200 runs that imports what all need: it takes 18 s, most others are
    modelled."""
    outstanding = [(TIMED, f"t{n}") for n in range(20)] + [(MODELLED, f"m{n}") for n in range(200)]
    left = TimeLeft(outstanding, {TIMED: 3.0, MODELLED: 0.3}, start_up(2, 2))
    announced = left.seconds
    assert announced == pytest.approx(20 * 3.0 + 200 * 0.3 + start_up(2, 2))
    left.started()
    left.done(TIMED, "t0", 18.0)
    assert announced / 2 < left.seconds < 1.5 * announced
    for n in range(200):
        left.done(MODELLED, f"m{n}", 0.02)
    assert left.seconds < 19 * 18


def test_what_a_run_took_itself_counts_for_its_next_rounds():
    left = TimeLeft([(TIMED, "short")] * 5 + [(TIMED, "long")] * 5, {}, 0.0)
    assert left.seconds == 0.0
    for _ in range(4):
        left.done(TIMED, "short", 1.0)
        left.done(TIMED, "long", 9.0)
    assert left.seconds == pytest.approx(10.0)
    left.done(TIMED, "long", None)  # left out
    assert left.seconds == pytest.approx((5 + 4 * 1) / 5)


def test_the_start_up_counts_once():
    left = TimeLeft([(TIMED, "a")], {TIMED: 10.0}, start_up(16, 2))
    assert left.seconds == pytest.approx(10 + start_up(16, 2))
    left.started()
    assert left.seconds == pytest.approx(10)
