"""What changes would give, from costs that are known, and the sentence that says which matters."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule import what_if as whatif
from repro.gpipe.schedule.kinds import CHECKPOINTS, EXECUTED, make_schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.gpipe.schedule.what_if import Costs, Why, what_if

UNIT = {"F": 1.0, "R": 1.0, "B": 2.0}
schedules = st.builds(
    make_schedule,
    st.sampled_from(EXECUTED),
    st.integers(1, 4),
    st.integers(1, 6),
    st.sampled_from(CHECKPOINTS),
)


def explained(schedule, duration=lambda action: UNIT[action.kind], transfer=0.0, examples=None):
    return Why.of(replay(schedule, duration, transfer), schedule, examples)


@given(schedule=schedules, transfer=st.floats(0, 3), data=st.data())
def test_unchanged_the_replay_of_known_costs_is_the_step(schedule, transfer, data):
    seconds = {
        (kind, j): data.draw(st.floats(0.1, 5)) for kind in "FRB" for j in range(schedule.stages)
    }
    found = explained(schedule, lambda a: seconds[a.kind, a.stage], transfer)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert [c.step_s for c in found.changes] == sorted(c.step_s for c in found.changes)
    assert all(c.factor * c.step_s == pytest.approx(found.base_s) for c in found.changes)
    assert {c.name for c in found.changes} <= set(whatif.CHANGES)
    free = [found.factor(name) for name in (whatif.LINK, whatif.NEVER_IDLE, whatif.BALANCE)]
    assert all(gain is None or gain >= 1 - 1e-9 for gain in free)


def test_every_change_by_hand():
    """(M+K-1)F + M(R+B) + (K-1)B of section 2.3 with F:R:B = 1:1:2, K=2: 4M + 3 units, and 3M + 3 without R."""
    schedule = make_schedule("gpipe", 2, 4)
    steps = {c.name: c.step_s for c in what_if(replay(schedule, lambda a: UNIT[a.kind]), schedule)}
    assert steps == {
        whatif.BALANCE: 19,
        whatif.LINK: 19,
        whatif.ORDER: 19,
        whatif.DOUBLED: (4 * 8 + 3) / 2,
        whatif.QUADRUPLED: (4 * 16 + 3) / 4,
        whatif.NEVER: 15,
        whatif.EXCEPT_LAST: 18,
        whatif.NEVER_IDLE: 16,
        whatif.ALL: (3 * 16 + 3) / 4,
    }


def test_all_together_leaves_out_what_does_not_gain():
    """With M=1 two equal stages are slower than these, and no other M is allowed: only recompute and links are left."""
    part = (1.2, 0.8)
    found = explained(
        make_schedule("gpipe", 2, 1),
        lambda a: UNIT[a.kind] * part[a.stage],
        transfer=0.5,
        examples=1,
    )
    alone = [found.factor(name) or 1 for name in (whatif.BALANCE, whatif.NEVER, whatif.LINK)]
    assert min(alone) < 1 + 1e-9, "a part that gives nothing"
    assert (found.factor(whatif.ALL) or 0) >= max(alone) - 1e-9


@given(schedule=schedules, transfer=st.floats(0, 3), data=st.data())
def test_all_together_is_never_slower_than_its_better_m_alone(schedule, transfer, data):
    seconds = {
        (kind, j): data.draw(st.floats(0.1, 4)) for kind in "FRB" for j in range(schedule.stages)
    }
    found = explained(schedule, lambda a: seconds[a.kind, a.stage], transfer)
    more = [found.factor(name) or 1 for name in (whatif.DOUBLED, whatif.QUADRUPLED)]
    if all(factor < 1 for factor in more):  # a larger M that is slower is no part of it
        own = [found.factor(name) or 1 for name in (whatif.NEVER, whatif.LINK)]
        assert (found.factor(whatif.ALL) or 1) >= max(own) - 1e-6


def test_equal_stages_are_not_taken_for_better_where_they_are_slower():
    """M=1: R of stage 0 is hidden, that of stage 1 is not; with 0.8 and 1.2 parts of the work it is 6.8 units to 7."""
    part = (1.2, 0.8)
    found = explained(make_schedule("gpipe", 2, 1), lambda a: UNIT[a.kind] * part[a.stage])
    assert found.base_s == pytest.approx(6.8)
    assert found.factor(whatif.BALANCE) == 1
    assert "balance" not in found.verdict
    even = explained(make_schedule("gpipe", 2, 1))
    assert even.base_s == 7


def test_only_what_concerns_a_run_is_tried():
    def names(*arguments, examples=None):
        schedule = make_schedule(*arguments)
        return {
            c.name for c in what_if(replay(schedule, lambda a: UNIT[a.kind]), schedule, examples)
        }

    assert names("gpipe", 1, 4) == {whatif.NEVER, whatif.EXCEPT_LAST}
    assert names("gpipe", 1, 4, "never") == set()
    assert whatif.EARLY in names("gpipe-late", 2, 4)
    assert whatif.EARLY not in names("gpipe-late", 2, 4, "never") | names("gpipe", 2, 4)
    assert whatif.ORDER not in names("1f1b", 2, 4)
    assert whatif.EXCEPT_LAST not in names("gpipe", 2, 4, "except_last")
    assert {whatif.DOUBLED, whatif.QUADRUPLED} & names("gpipe", 2, 4, examples=15) == {
        whatif.DOUBLED
    }
    assert not {whatif.DOUBLED, whatif.QUADRUPLED} & names("gpipe", 2, 4, examples=7)


def test_gaps_and_delays_do_not_shrink_with_the_micro_batches():
    """After each action its message takes 0.5 to leave, while the stage rests, and 0.25 to arrive."""
    schedule = make_schedule("gpipe", 2, 4, "never")
    slow = replay(schedule, lambda a: UNIT[a.kind] + 0.5, 0.25)
    spans = tuple(Span(s.kind, s.stage, s.micro_batch, s.start, s.end - 0.5) for s in slow.spans)
    timeline = Timeline(spans, 2)
    costs = Costs.of(timeline, schedule)
    assert costs.delays == {(0, 1): Crossing(latency=0.75), (1, 0): Crossing(latency=0.75)}
    assert costs.gaps == {(kind, j): 0.5 * (kind != "R") for kind in "FRB" for j in (0, 1)}
    base, doubled = costs.step(schedule), Why.of(timeline, schedule).factor(whatif.DOUBLED)
    assert base == slow.step_time - 0.5  # what follows the last B is not part of the step
    faster = replay(make_schedule("gpipe", 2, 8, "never"), lambda a: UNIT[a.kind] / 2 + 0.5, 0.25)
    assert doubled == pytest.approx(base / (faster.step_time - 0.5))
    assert doubled is not None
    assert doubled < 1


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("latency", [0.0, 0.7])
@pytest.mark.parametrize("seconds", [0.5, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("name", ["gpipe", "gpipe-late", "1f1b"])
def test_a_busy_link_is_told_from_the_runtime(name, stages, seconds, latency, noise):
    schedule, random = make_schedule(name, stages, 32), Random(1)
    costs = {
        a: UNIT[a.kind] * random.uniform(1 - noise, 1 + noise)
        for j in range(stages)
        for a in schedule.work(j)
    }
    timeline = replay(
        schedule,
        costs.__getitem__,
        lambda _send: Crossing(seconds * random.uniform(1 - noise, 1 + noise), latency),
    )
    found = Why.of(timeline, schedule)
    assert found.factor(whatif.LINK) == pytest.approx(
        timeline.step_time / replay(schedule, costs.__getitem__).step_time, rel=0.05
    )
    assert found.error == pytest.approx(0, abs=0.03)
    assert found.shares["gap"] < 0.01


def test_a_smaller_micro_batch_occupies_a_busy_link_for_less():
    schedule = make_schedule("gpipe", 2, 32)
    now = replay(schedule, lambda a: UNIT[a.kind], lambda _send: Crossing(10.0))
    halves = replay(
        make_schedule("gpipe", 2, 64), lambda a: UNIT[a.kind] / 2, lambda _send: Crossing(5.0)
    )
    assert Why.of(now, schedule).factor(whatif.DOUBLED) == pytest.approx(
        now.step_time / halves.step_time, rel=0.02
    )


def test_setup_and_update_are_kept_as_they_were():
    schedule = make_schedule("gpipe", 2, 1, "never")
    walked = replay(schedule, lambda a: UNIT[a.kind])
    around = (Span("setup", 0, -1, -2.0, -0.5), Span("U", 0, -1, 6.5, 8.0))
    found = Why.of(Timeline((*around, *walked.spans), 2), schedule)
    assert found.base_s == 10.0
    assert found.error == 0
    assert next(c for c in found.changes if c.name == whatif.NEVER_IDLE).step_s == 4 + 3


@pytest.mark.parametrize(
    ("found", "words"),
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
def test_the_verdict_names_the_largest_cause(found, words):
    assert found.verdict == words


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
        what_if(timeline, make_schedule("gpipe", 2, 3))
    with pytest.raises(ValueError, match=r"0 spans of R0 on stage 0.* has 1"):
        what_if(
            Timeline(tuple(s for s in timeline.spans if s.kind != "R"), 2),
            make_schedule("gpipe", 2, 4),
        )
    with pytest.raises(ValueError, match="take 0 s"):
        what_if(replay(make_schedule("gpipe", 2, 4), lambda _a: 0.0), make_schedule("gpipe", 2, 4))
