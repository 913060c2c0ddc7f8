"""What changes to a run would give, from costs that are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule.actions import COMPUTE
from repro.gpipe.schedule.kinds import CHECKPOINTS, EXECUTED, SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.gpipe.schedule.what_if import BALANCE, CHANGES, DOUBLED, LINK, NEVER, Costs, Explanation

UNIT = {"F": 1.0, "R": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
K, M = st.integers(1, 4), st.integers(1, 6)
ONE_STAGE = [name for name in EXECUTED if not SCHEDULES[name].interleaved]  # on each rank
schedules = st.builds(make_schedule, st.sampled_from(ONE_STAGE), K, M, st.sampled_from(CHECKPOINTS))
schedules |= st.builds(make_schedule, st.just("zb-h1"), K, M, st.just("never"))
schedules |= st.builds(
    lambda K, M, checkpoint, held: make_schedule("interleaved-1f1b", K * held, M, checkpoint, held),
    *(K, M, st.sampled_from(CHECKPOINTS), st.integers(2, 3)),
)


def explained(schedule, duration=lambda action: UNIT[action.kind], transfer=0.0, examples=None):
    return Explanation.of(replay(schedule, duration, transfer), schedule, examples)


def steps(explanation) -> dict[str, float]:
    return {change.name: change.step_s for change in explanation.changes}


@given(schedule=schedules, data=st.data())
def test_unchanged_the_replay_of_known_costs_is_the_step(schedule, data):
    seconds = {
        (kind, j): data.draw(st.floats(0.1, 5)) for kind in COMPUTE for j in range(schedule.stages)
    }
    found = explained(schedule, lambda a: seconds[a.kind, a.stage])
    assert found.base_s == pytest.approx(found.timeline.step_time)
    assert [c.step_s for c in found.changes] == sorted(c.step_s for c in found.changes)
    assert all(c.factor * c.step_s == pytest.approx(found.base_s) for c in found.changes)
    assert {c.name for c in found.changes} <= set(CHANGES)
    gains = [change.factor for change in found.changes if change.name in (LINK, BALANCE)]
    assert all(gain >= 1 - 1e-9 for gain in gains)


@given(schedule=schedules, transfer=st.floats(0, 1))
def test_messages_that_take_less_than_an_action_are_replayed_exactly(schedule, transfer):
    found = explained(schedule, transfer=transfer)
    assert found.base_s == pytest.approx(found.timeline.step_time)
    assert steps(found).get(LINK, 0.0) <= found.base_s + 1e-9


def test_every_change_by_hand():
    """Section 2.3: (M+K-1)F + M(R+B) + (K-1)B; with F:R:B = 1:1:2 and K=2 it is 4M + 3."""
    found = steps(explained(make_schedule("gpipe", 2, 4)))
    assert found == {BALANCE: 19, LINK: 19, DOUBLED: (4 * 8 + 3) / 2, NEVER: 15}


def test_equal_stages_are_not_taken_for_better_where_they_are_slower():
    """M=1: R of stage 0 is hidden, that of stage 1 is not; 1.2 and 0.8 parts beat equal ones."""
    part = (1.2, 0.8)
    found = explained(make_schedule("gpipe", 2, 1), lambda a: UNIT[a.kind] * part[a.stage])
    assert found.base_s == pytest.approx(6.8)
    assert steps(found)[BALANCE] == found.base_s
    assert explained(make_schedule("gpipe", 2, 1)).base_s == 7


def test_only_what_concerns_a_run_is_tried():
    def names(*arguments, examples=None):
        return set(steps(explained(make_schedule(*arguments), examples=examples)))

    assert names("gpipe", 1, 4) == {NEVER}
    assert names("gpipe", 1, 4, "never") == set()
    assert names("zb-h1", 2, 4, "never", examples=4) == {BALANCE, LINK}
    assert DOUBLED in names("gpipe", 2, 4, examples=8)
    assert DOUBLED not in names("gpipe", 2, 4, examples=7)


def test_gaps_and_latencies_do_not_shrink_with_the_micro_batches():
    """After an action the stage rests for 0.5, then its message takes 0.25."""
    schedule = make_schedule("gpipe", 2, 4, "never")
    slow = replay(schedule, lambda a: UNIT[a.kind] + 0.5, 0.25)
    spans = tuple(Span(s.kind, s.stage, s.micro_batch, s.start, s.end - 0.5) for s in slow.spans)
    found = Explanation.of(Timeline(spans, 2), schedule)
    assert found.costs.latencies == {(0, 1): 0.75, (1, 0): 0.75}
    assert found.costs.gaps == {0: 0.5, 1: 0.5}
    assert found.base_s == slow.step_time - 0.5  # what follows the last B is not part of the step
    faster = replay(make_schedule("gpipe", 2, 8, "never"), lambda a: UNIT[a.kind] / 2 + 0.5, 0.25)
    assert steps(found)[DOUBLED] == pytest.approx(faster.step_time - 0.5)
    assert steps(found)[DOUBLED] > found.base_s


def test_a_stage_without_gaps_takes_the_median_of_the_others():
    schedule = make_schedule("gpipe", 2, 1, "never")
    spans = (
        Span("F", 0, 0, 0.0, 1.0),
        Span("F", 1, 0, 1.5, 2.5),
        Span("B", 1, 0, 2.75, 4.75),
        Span("B", 0, 0, 5.0, 7.0),
    )
    costs = Costs.of(Timeline(spans, 2), schedule)
    assert costs.gaps == {0: 0.25, 1: 0.25}
    assert costs.latencies == {(0, 1): 0.5, (1, 0): 0.25}
    assert costs.step(schedule) == 7.0


def test_setup_and_update_are_kept_as_they_were():
    schedule = make_schedule("gpipe", 2, 1, "never")
    walked = replay(schedule, lambda a: UNIT[a.kind])
    around = (Span("setup", 0, -1, -2.0, -0.5), Span("U", 0, -1, 6.5, 8.0))
    assert Explanation.of(Timeline((*around, *walked.spans), 2), schedule).base_s == 10.0


def test_spans_of_another_run_are_refused():
    schedule = make_schedule("gpipe", 2, 4)
    timeline = replay(schedule, lambda a: UNIT[a.kind])
    with pytest.raises(ValueError, match="not those of its schedule 'gpipe'"):
        Explanation.of(timeline, make_schedule("gpipe", 2, 3))
    with pytest.raises(ValueError, match="not those of its schedule"):
        Explanation.of(replay(schedule, lambda _a: 0.0), schedule)
