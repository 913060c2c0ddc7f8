"""Schedules are drawn as tables, and hold what a pipeline must hold for any K and M."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.kinds import CHECKPOINTS, SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import check, draw, replay

ANY = {
    "name": st.sampled_from(sorted(SCHEDULES)),
    "stages": st.integers(1, 9),
    "micro_batches": st.integers(1, 17),
    "checkpoint": st.sampled_from(CHECKPOINTS),
}


def drawn(schedule):
    return [line.split("|")[1].split() for line in draw(schedule).splitlines()]


def test_figure_2c():
    assert drawn(make_schedule("gpipe", 4, 4, "never")) == [
        "F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0".split(),
        ".  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .".split(),
        ".  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .".split(),
        ".  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  .".split(),
    ]


def test_figure_2b_is_one_micro_batch():
    assert drawn(make_schedule("gpipe", 3, 1, "never")) == [
        "F0 .  .  .  .  B0".split(),
        ".  F0 .  .  B0 .".split(),
        ".  .  F0 B0 .  .".split(),
    ]


def test_recompute_runs_before_the_gradient_arrives():
    assert drawn(make_schedule("gpipe", 2, 2, "always")) == [
        "F0 F1 R1 .  .  B1 R0 B0".split(),
        ".  F0 F1 R1 B1 R0 B0 .".split(),
    ]


def test_except_last_keeps_the_one_that_comes_first_in_backward():
    assert drawn(make_schedule("gpipe", 2, 2, "except_last")) == [
        "F0 F1 .  .  B1 R0 B0".split(),
        ".  F0 F1 B1 R0 B0 .".split(),
    ]


def test_late_recompute_waits_for_the_gradient():
    assert drawn(make_schedule("gpipe-late", 2, 1, "always")) == [
        "F0 .  .  .  R0 B0".split(),
        ".  F0 R0 B0 .  .".split(),
    ]


def test_1f1b_drawn():
    assert drawn(make_schedule("1f1b", 2, 3, "never")) == [
        "F0 F1 .  B0 F2 B1 .  B2".split(),
        ".  F0 B0 F1 B1 F2 B2 .".split(),
    ]


@given(**ANY)
def test_every_micro_batch_happens_once_and_in_order(name, stages, micro_batches, checkpoint):
    schedule = make_schedule(name, stages, micro_batches, checkpoint)
    for j, rank in enumerate(schedule.ranks):
        assert all(a.stage == j for a in rank)
        for i in range(micro_batches):
            kinds = [a.kind for a in rank if a.micro_batch == i]
            assert kinds in (["F", "B"], ["F", "R", "B"])
            if checkpoint != "except_last":
                assert ("R" in kinds) == (checkpoint == "always")
            recomputed = rank.index(Action("B", j, i)) - rank.index(Action("R", j, i)) if "R" in kinds else 1
            assert recomputed == 1, "R directly precedes its B: at most one micro-batch's activations are live"


@given(**ANY)
def test_happens_before(name, stages, micro_batches, checkpoint):
    schedule = make_schedule(name, stages, micro_batches, checkpoint)
    timeline = replay(schedule, lambda a: {"F": 1.0, "R": 1.0, "B": 2.0}[a.kind], transfer=0.25)
    spans = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
    assert len(spans) == sum(len(rank) for rank in schedule.ranks)
    for (kind, j, i), span in spans.items():
        if kind == "F" and j:
            assert span.start >= spans["F", j - 1, i].end + 0.25
        if kind == "B":
            assert span.start >= spans["F", j, i].end
            if j + 1 < stages:
                assert span.start >= spans["B", j + 1, i].end + 0.25


@given(stages=ANY["stages"], micro_batches=ANY["micro_batches"], checkpoint=ANY["checkpoint"])
def test_gpipe_forwards_first_then_backwards_reversed(stages, micro_batches, checkpoint):
    for rank in make_schedule("gpipe", stages, micro_batches, checkpoint).ranks:
        assert [a.micro_batch for a in rank if a.kind == "F"] == list(range(micro_batches))
        assert [a.micro_batch for a in rank if a.kind == "B"] == list(reversed(range(micro_batches)))
        assert "F" not in [a.kind for a in rank][micro_batches:]


@given(stages=ANY["stages"], micro_batches=ANY["micro_batches"])
def test_1f1b_holds_at_most_k_minus_j_micro_batches(stages, micro_batches):
    for j, rank in enumerate(make_schedule("1f1b", stages, micro_batches, "never").ranks):
        live = high = 0
        for action in rank:
            live += {"F": 1, "B": -1}[action.kind]
            high = max(high, live)
        assert high == min(stages - j, micro_batches)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpip", 2, 2), ["schedule='gpip'", "1f1b", "did you mean 'gpipe'"]),
        (("gpipe", 2, 2, "sometimes"), ["checkpoint='sometimes'", "except_last"]),
        (("gpipe", 0, 2), ["stages=0", "at least 1"]),
        (("gpipe", 2, 0), ["micro_batches=0", "at least 1"]),
    ],
)
def test_one_line_for_a_wrong_argument(arguments, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make_schedule(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@given(**ANY)
def test_every_schedule_passes_its_own_check(name, stages, micro_batches, checkpoint):
    schedule = make_schedule(name, stages, micro_batches, checkpoint)
    check(schedule)
    check(schedule.forward_only())


def by_hand(*orders: str) -> Schedule:
    ranks = [[Action(word[0], j, int(word[1])) for word in order.split()] for j, order in enumerate(orders)]
    return Schedule("mine", len(orders), 2, "never", tuple(map(tuple, ranks)))


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        (("F0 F1 B1 B0", "F0 F1 B1"), "stage 1 must do each of F and B 0 to 1 exactly once"),
        (("F0 B0", "F0 B0"), "stage 0 must do each of F and B 0 to 1 exactly once"),
        (("F0 F1", "F0"), "stage 1 must do each of F 0 to 1 exactly once"),
        (("F0 F1 B1 B0", "F0 F1 F1 B1 B0"), "stage 1 must do each"),
        (("F0 F1 B1 B0", "F0 B1 F1 B0"), "stage 1 does B1 at the wrong time"),
        (("F0 F1 R0 B1 B0", "F0 F1 B1 R1 B0"), "stage 1 does R1 at the wrong time"),
        (
            ("F0 B0 F1 B1", "F0 F1 B1 B0"),
            r"deadlocks: B0 on stage 0 waits for B0 on stage 1, F1 on stage 1 waits for F1",
        ),
    ],
)
def test_what_would_deadlock_or_lose_a_message_is_refused(orders, words):
    with pytest.raises(ValueError, match=words) as caught:
        check(by_hand(*orders))
    assert "\n" not in str(caught.value)


def test_a_pipeline_checks_its_schedule(monkeypatch):
    monkeypatch.setitem(SCHEDULES, "mine", lambda _stage, _stages, M: [("F", i) for i in range(M)] + [("B", 0)])
    with pytest.raises(ValueError, match="schedule 'mine': stage 0 must do each of F and B 0 to 1 exactly once"):
        Pipeline([nn.Identity], 1, 2, schedule="mine", device="cpu")
