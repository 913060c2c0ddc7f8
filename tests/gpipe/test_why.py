"""What changes would give, from costs that are known, and the sentence that says which matters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule import what_if as whatif
from repro.gpipe.schedule.actions import COMPUTE
from repro.gpipe.schedule.kinds import CHECKPOINTS, EXECUTED, SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.gpipe.schedule.what_if import Costs, Why

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
    return Why.of(replay(schedule, duration, transfer), schedule, examples)


@given(schedule=schedules, data=st.data())
def test_unchanged_the_replay_of_known_costs_is_the_step(schedule, data):
    seconds = {
        (kind, j): data.draw(st.floats(0.1, 5)) for kind in COMPUTE for j in range(schedule.stages)
    }
    why = explained(schedule, lambda a: seconds[a.kind, a.stage])
    assert why.error == pytest.approx(0, abs=1e-9)
    assert sum(why.shares.values()) == pytest.approx(1)
    assert [c.step_s for c in why.changes] == sorted(c.step_s for c in why.changes)
    assert all(c.factor * c.step_s == pytest.approx(why.base_s) for c in why.changes)
    assert {c.name for c in why.changes} <= set(whatif.CHANGES)
    gains = [why.factor(name) for name in (whatif.LINK, whatif.BALANCE)]
    assert all(gain is None or gain >= 1 - 1e-9 for gain in gains)


@given(schedule=schedules, transfer=st.floats(0, 1))
def test_messages_that_take_less_than_an_action_are_replayed_exactly(schedule, transfer):
    why = explained(schedule, transfer=transfer)
    assert why.error == pytest.approx(0, abs=1e-9)
    assert (why.factor(whatif.LINK) or 1) >= 1 - 1e-9


def test_every_change_by_hand():
    """Section 2.3: (M+K-1)F + M(R+B) + (K-1)B; with F:R:B = 1:1:2 and K=2 it is 4M + 3."""
    schedule = make_schedule("gpipe", 2, 4)
    steps = {change.name: change.step_s for change in explained(schedule).changes}
    assert steps == {
        whatif.BALANCE: 19,
        whatif.LINK: 19,
        whatif.ORDER: 19,
        whatif.DOUBLED: (4 * 8 + 3) / 2,
        whatif.QUADRUPLED: (4 * 16 + 3) / 4,
        whatif.NEVER: 15,
        whatif.EXCEPT_LAST: 18,
    }


def test_equal_stages_are_not_taken_for_better_where_they_are_slower():
    """M=1: R of stage 0 is hidden, that of stage 1 is not; 1.2 and 0.8 parts beat equal ones."""
    part = (1.2, 0.8)
    why = explained(make_schedule("gpipe", 2, 1), lambda a: UNIT[a.kind] * part[a.stage])
    assert why.base_s == pytest.approx(6.8)
    assert why.factor(whatif.BALANCE) == 1
    assert "balance" not in why.verdict
    even = explained(make_schedule("gpipe", 2, 1))
    assert even.base_s == 7


def test_only_what_concerns_a_run_is_tried():
    def names(*arguments, examples=None):
        why = explained(make_schedule(*arguments), examples=examples)
        return {change.name for change in why.changes}

    assert names("gpipe", 1, 4) == {whatif.NEVER, whatif.EXCEPT_LAST}
    assert names("gpipe", 1, 4, "never") == set()
    assert whatif.EARLY in names("gpipe-late", 2, 4)
    assert whatif.EARLY not in names("gpipe-late", 2, 4, "never") | names("gpipe", 2, 4)
    assert whatif.ORDER not in names("1f1b", 2, 4)
    assert names("zb-h1", 2, 4, "never", examples=4) == {whatif.BALANCE, whatif.LINK}
    assert whatif.EXCEPT_LAST not in names("gpipe", 2, 4, "except_last")
    assert {whatif.DOUBLED, whatif.QUADRUPLED} & names("gpipe", 2, 4, examples=15) == {
        whatif.DOUBLED
    }
    assert not {whatif.DOUBLED, whatif.QUADRUPLED} & names("gpipe", 2, 4, examples=7)


def test_gaps_and_latencies_do_not_shrink_with_the_micro_batches():
    """After an action the stage rests for 0.5, then its message takes 0.25."""
    schedule = make_schedule("gpipe", 2, 4, "never")
    slow = replay(schedule, lambda a: UNIT[a.kind] + 0.5, 0.25)
    spans = tuple(Span(s.kind, s.stage, s.micro_batch, s.start, s.end - 0.5) for s in slow.spans)
    timeline = Timeline(spans, 2)
    costs = Costs.of(timeline, schedule)
    assert costs.latencies == {(0, 1): 0.75, (1, 0): 0.75}
    assert costs.gaps == {0: 0.5, 1: 0.5}
    base, doubled = costs.step(schedule), Why.of(timeline, schedule).factor(whatif.DOUBLED)
    assert base == slow.step_time - 0.5  # what follows the last B is not part of the step
    faster = replay(make_schedule("gpipe", 2, 8, "never"), lambda a: UNIT[a.kind] / 2 + 0.5, 0.25)
    assert doubled == pytest.approx(base / (faster.step_time - 0.5))
    assert doubled is not None
    assert doubled < 1


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
    why = Why.of(Timeline((*around, *walked.spans), 2), schedule)
    assert why.base_s == 10.0
    assert why.error == 0


@pytest.mark.parametrize(
    ("why", "verdict"),
    [
        (
            explained(
                make_schedule("gpipe", 2, 32, "never"),
                lambda a: UNIT[a.kind] * (1.5 if a.stage else 1.0),
            ),
            "stage 1 is 20% slower than the mean: a better balance would give about 1.19x",
        ),
        (
            explained(make_schedule("gpipe", 4, 2, "never"), examples=4),
            "stages idle 60% of K x step: M=4 instead of 2 at the same N would give about 1.43x",
        ),
        (
            explained(make_schedule("gpipe", 2, 1, "never"), transfer=2.0, examples=1),
            "messages are 40% of the critical path: a free link would give 1.67x",
        ),
        (
            explained(make_schedule("gpipe-late", 4, 2), examples=2),
            "recomputation waits for gradients: recomputing early would give 1.18x; keeping all "
            "activations instead of recomputing them would give 1.33x",
        ),
        (
            explained(make_schedule("gpipe", 2, 4, "never"), examples=4),
            "no change that costs no memory would give more than 1.02x: stages idle 20% of K x "
            "step, and at this N there is no M of 8",
        ),
    ],
)
def test_the_verdict_names_the_largest_cause(why, verdict):
    assert why.verdict == verdict


def test_the_verdict_names_the_runtime():
    schedule = make_schedule("gpipe", 1, 2, "never")
    walked = replay(schedule, lambda a: UNIT[a.kind] + 1.0)
    spans = tuple(Span(s.kind, s.stage, s.micro_batch, s.start, s.end - 1.0) for s in walked.spans)
    verdict = Why.of(Timeline(spans, 1), schedule).verdict
    assert verdict == "the runtime: 33% of the critical path is neither work nor a message"


def test_spans_of_another_run_are_one_line():
    timeline = replay(make_schedule("gpipe", 2, 4), lambda a: UNIT[a.kind])
    with pytest.raises(
        ValueError, match=r"1 spans of B3 on stage 0, the schedule 'gpipe' has 0: .* --force"
    ):
        Why.of(timeline, make_schedule("gpipe", 2, 3))
    with pytest.raises(ValueError, match=r"0 spans of R0 on stage 0.* has 1"):
        Why.of(
            Timeline(tuple(s for s in timeline.spans if s.kind != "R"), 2),
            make_schedule("gpipe", 2, 4),
        )
    with pytest.raises(ValueError, match="take 0 s"):
        Why.of(replay(make_schedule("gpipe", 2, 4), lambda _a: 0.0), make_schedule("gpipe", 2, 4))
