"""`replay` against the closed forms of the paper (section 2.3), and breakdowns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule.breakdown import PARTS, breakdown
from repro.gpipe.schedule.kinds import make_schedule, schedule_from_orders
from repro.gpipe.schedule.replay import Crossing, DeadlockError, replay
from repro.gpipe.schedule.timeline import Span, Timeline

UNIT = {"F": 1.0, "R": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
SECONDS = st.floats(0.1, 5)
K, M = st.integers(1, 8), st.integers(1, 20)


@given(K=K, M=M)
def test_closed_forms(K, M):
    plain = replay(make_schedule("gpipe", K, M, "never"), lambda a: UNIT[a.kind])
    assert plain.step_time == (M + K - 1) * 3
    assert plain.bubble_over_total == pytest.approx((K - 1) / (M + K - 1))
    assert plain.bubble_over_work == pytest.approx((K - 1) / M)
    late = replay(make_schedule("gpipe-late", K, M, "always"), lambda a: UNIT[a.kind])
    assert late.step_time == (M + K - 1) * 4
    early = replay(make_schedule("gpipe", K, M, "always"), lambda a: UNIT[a.kind])
    assert early.step_time == (M + K - 1) * 1 + M * (1 + 2) + (K - 1) * 2
    assert early.bubble_over_total == pytest.approx(3 * (K - 1) / (4 * M + 3 * (K - 1)))


@given(K=K, M=M)
def test_zb_h1_has_a_third_of_the_bubble_of_1f1b(K, M):
    """Table 2 of arXiv:2401.10241 with F = I = W. With M < K the last W have no wait to fill."""
    step = replay(make_schedule("zb-h1", K, M, "never"), lambda a: UNIT[a.kind]).step_time
    plain = replay(make_schedule("1f1b", K, M, "never"), lambda a: UNIT[a.kind]).step_time
    assert plain == 3 * M + 3 * (K - 1)
    assert step == (3 * M + (K - 1) if M >= K else 2 * (M + K - 1) + 1)


@given(K=K, more=st.integers(0, 12), F=SECONDS, I=SECONDS, W=SECONDS)
def test_what_zb_h1_waits_with_other_times(K, more, F, I, W):  # noqa: E741
    """(K-1)(F+I-W), as in Table 2, where W is no longer than F and I; else it fills only a part."""
    M, seconds = K + more, {"F": F, "I": I, "W": W}
    timeline = replay(make_schedule("zb-h1", K, M, "never"), lambda a: seconds[a.kind])
    wait = max(F + I - W, F, I)
    assert timeline.step_time == pytest.approx(M * (F + I + W) + (K - 1) * wait)


def test_transfer_delays_only_what_crosses():
    timeline = replay(
        make_schedule("gpipe", 2, 1, "never"),
        lambda a: UNIT[a.kind],
        lambda a: Crossing(0.5 if a.of == "F" else 0.25),
    )
    assert timeline.step_time == 1 + 0.5 + 1 + 2 + 0.25 + 2


def test_a_link_carries_one_message_at_a_time():
    """F takes 1 second and its message 3, so the second message waits for the first."""
    forwards = make_schedule("gpipe", 2, 3, "never").forward_only()
    timeline = replay(forwards, lambda _a: 1.0, lambda _send: Crossing(3.0, latency=0.5))
    assert [s.start for s in timeline.on(1)] == [1 + 3 + 0.5, 1 + 6 + 0.5, 1 + 9 + 0.5]
    assert [s.start for s in timeline.on(0)] == [0, 1, 2]


def test_a_blocking_link_keeps_its_sender():
    forwards = make_schedule("gpipe", 2, 3, "never").forward_only()
    timeline = replay(
        forwards, lambda _a: 1.0, lambda _send: Crossing(3.0, latency=0.5, blocking=True)
    )
    assert [s.start for s in timeline.on(0)] == [0, 4, 8]
    assert [s.start for s in timeline.on(1)] == [4.5, 8.5, 12.5]


def test_a_stuck_schedule_is_named():
    orders = [[("F", 0, 0), ("B", 0, 0)], [("F", 1, 1), ("B", 1, 0)]]
    with pytest.raises(
        DeadlockError,
        match="Recv B0 on stage 0 waits for rank 1, Recv F1 on stage 1 waits for rank 0",
    ):
        replay(schedule_from_orders("stuck", 2, "never", orders), lambda _a: 1.0)


def timed(name, K, M, checkpoint, duration=lambda a: UNIT[a.kind], transfer=0.0):
    return replay(make_schedule(name, K, M, checkpoint), duration, transfer)


@pytest.mark.parametrize(
    ("timeline", "parts"),
    [
        (timed("gpipe", 2, 16, "always"), {"bubble": 3 / 67, "recompute": 16 / 67}),
        (timed("zb-h1", 4, 8, "never"), {"computation": 24 / 27, "bubble": 3 / 27, "update": 0}),
        (timed("gpipe", 2, 8, "never", lambda _a: 1.0), {"imbalance": 0}),
        (timed("gpipe", 2, 4, "never", lambda _a: 1.0, 1.0), {"transfer": 4 / 24, "imbalance": 0}),
    ],
)
def test_breakdowns(timeline, parts):
    found = breakdown(timeline)
    assert sum(found.values()) == pytest.approx(1)
    assert {name: found[name] for name in parts} == pytest.approx(parts)


def test_breakdown_names_a_slow_stage_imbalance():
    uneven = breakdown(timed("gpipe", 2, 8, "never", lambda a: 1.5 if a.stage else 0.5))
    assert uneven["imbalance"] > 0.2
    assert uneven["transfer"] == pytest.approx(0.0)


def test_breakdown_of_measured_extras():
    spans = (
        Span("setup", 0, -1, 0.0, 1.0),
        Span("F", 0, 0, 1.0, 3.0),
        Span("B", 0, 0, 3.0, 7.0),
        Span("U", 0, -1, 7.0, 8.0),
    )
    parts = breakdown(Timeline(spans, 1))
    expected = dict.fromkeys(PARTS, 0.0) | {"computation": 6 / 8, "update": 1 / 8, "setup": 1 / 8}
    assert parts == pytest.approx(expected)
    assert sum(breakdown(Timeline((), 2)).values()) == 0


def test_breakdown_of_late_recompute_has_no_transfer_on_a_free_link():
    schedule = make_schedule("gpipe-late", 3, 4, "always")
    parts = breakdown(replay(schedule, lambda a: UNIT[a.kind]), schedule)
    assert parts["transfer"] == pytest.approx(0.0)
    assert parts["bubble"] == pytest.approx(2 / 6)
