"""Critical paths: what they name, that their legs abut, and that they sum to the step."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule.critical import by_stage, critical_path
from repro.gpipe.schedule.kinds import CHECKPOINTS, EXECUTED, SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Span, Timeline

UNIT = {"F": 1.0, "R": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
SHORT = {"setup": "s", "transfer": "t", "gap": "g"}
K, M = st.integers(1, 5), st.integers(1, 6)
ONE_STAGE = [name for name in EXECUTED if not SCHEDULES[name].interleaved]  # on each rank
schedules = st.builds(make_schedule, st.sampled_from(ONE_STAGE), K, M, st.sampled_from(CHECKPOINTS))
schedules |= st.builds(make_schedule, st.just("zb-h1"), K, M, st.just("never"))
schedules |= st.builds(
    lambda K, M, checkpoint, held: make_schedule("interleaved-1f1b", K * held, M, checkpoint, held),
    *(K, M, st.sampled_from(CHECKPOINTS), st.integers(2, 3)),
)


def drawn(legs):
    """`F0@0 F0@1 ...`: kind, micro-batch, stage."""
    return " ".join(f"{SHORT.get(leg.kind, leg.kind)}{leg.micro_batch}@{leg.stage}" for leg in legs)


def holds(legs, timeline):
    """They cover the step from its start to its end, each beginning where the one before ends."""
    assert legs[0].start == timeline.start
    assert legs[-1].end == timeline.start + timeline.step_time
    assert all(a.end == b.start for a, b in pairwise(legs))
    assert all(leg.seconds > 0 for leg in legs)
    assert sum(leg.seconds for leg in legs) == pytest.approx(timeline.step_time)


def by_kind(legs):
    """Seconds of each kind that occurs."""
    seconds = {}
    for leg in legs:
        seconds[leg.kind] = seconds.get(leg.kind, 0.0) + leg.seconds
    return seconds


def test_down_the_pipe_and_back():
    schedule = make_schedule("gpipe", 2, 2, "never")
    timeline = replay(schedule, lambda a: UNIT[a.kind])
    assert drawn(critical_path(timeline, schedule)) == "F0@0 F0@1 F1@1 B1@1 B1@0 B0@0"


def test_the_path_of_split_backwards():
    """Stage 1 waits for I of stage 2, and not for its W. The last W ends the step."""
    schedule = make_schedule("zb-h1", 3, 3, "never")
    timeline = replay(schedule, lambda a: UNIT[a.kind])
    assert drawn(critical_path(timeline, schedule)) == (
        "F0@0 F0@1 F0@2 I0@2 I0@1 I0@0 W0@0 I1@0 W1@0 I2@0 W2@0"
    )
    slow_link = replay(schedule, lambda a: UNIT[a.kind], transfer=2.0)
    assert "t2@1 I2@1 t2@0 I2@0 W2@0" in drawn(critical_path(slow_link, schedule))


def test_messages_on_their_way_are_transfer_and_nothing_else_is():
    schedule = make_schedule("gpipe", 2, 2, "never")
    timeline = replay(schedule, lambda a: UNIT[a.kind], transfer=0.5)
    legs = critical_path(timeline, schedule)
    assert drawn(legs) == "F0@0 t0@1 F0@1 F1@1 B1@1 t1@0 B1@0 B0@0"
    assert by_kind(legs) == {"F": 3, "B": 6, "transfer": 1}
    assert by_stage(legs, 2)[0]["transfer"] == by_stage(legs, 2)[1]["transfer"] == 0.5


def test_a_message_on_its_way_when_the_stage_became_free_is_a_gap():
    """F1 of stage 0 ends at 2 and arrives at 5; stage 1 ends F0 at 4.9, long after F1 was sent."""
    schedule = make_schedule("gpipe", 2, 2, "never")
    timeline = replay(schedule, lambda a: 1.0 if a.stage == 0 else 0.9, transfer=3.0)
    path = drawn(critical_path(timeline, schedule))
    assert path.startswith("F0@0 t0@1 F0@1 g1@1 F1@1 B1@1")


def test_setup_update_and_what_the_runtime_takes():
    """Stage 1 updates last: it waited until stage 0, whose B ended last, had agreed."""
    schedule = make_schedule("gpipe", 2, 1, "never")
    spans = [
        *(Span("setup", 0, -1, 10.0, 11.0), Span("setup", 1, -1, 10.5, 11.0)),
        *(Span("F", 0, 0, 11.25, 12.0), Span("F", 1, 0, 12.5, 13.0)),
        *(Span("B", 1, 0, 13.25, 14.0), Span("B", 0, 0, 14.5, 16.0)),
        *(Span("U", 0, -1, 16.5, 17.0), Span("U", 1, -1, 17.5, 18.0)),
    ]
    timeline = Timeline(tuple(spans), 2)
    legs = critical_path(timeline, schedule)
    holds(legs, timeline)
    assert drawn(legs) == "s-1@0 g0@0 F0@0 t0@1 F0@1 g0@1 B0@1 t0@0 B0@0 g-1@1 U-1@1"
    assert by_kind(legs)["gap"] == 0.25 + 0.25 + 1.5


@given(schedule=schedules, data=st.data())
def test_legs_abut_and_sum_to_the_step(schedule, data):
    seconds = st.floats(0, 10, allow_subnormal=False)
    costs = {
        action: data.draw(seconds)
        for j in range(len(schedule.ranks))
        for action in schedule.work(j)
    }
    costs[schedule.ranks[0][0]] += 1.0  # a step takes some time
    transfer = data.draw(seconds)
    timeline = replay(schedule, costs.__getitem__, transfer)
    legs = critical_path(timeline, schedule)
    holds(legs, timeline)
    assert sum(sum(kinds.values()) for kinds in by_stage(legs, schedule.stages)) == pytest.approx(
        timeline.step_time
    )
    if not transfer:
        assert "transfer" not in by_kind(legs)
        assert by_kind(legs).get("gap", 0.0) == pytest.approx(0, abs=1e-9)


def test_ranks_that_hold_several_stages():
    """K=2, stages 0 and 2 on the first rank: what stage 2 waits for is a message of stage 1."""
    schedule = make_schedule("interleaved-1f1b", 4, 2, "never", 2)
    timeline = replay(schedule, lambda a: UNIT[a.kind], 0.5)
    legs = critical_path(timeline, schedule)
    holds(legs, timeline)
    assert drawn(legs).startswith("F0@0 t0@1 F0@1 t0@2 F0@2 t0@3 F0@3 B0@3")
