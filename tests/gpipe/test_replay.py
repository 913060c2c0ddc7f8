"""`replay` of messages, and timelines; tests/test_simulate.py has the closed forms."""

import json

import pytest

from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Span, Timeline

UNIT = {"F": 1.0, "B": 2.0}


def timed(K, M, crossing=lambda *_: Crossing()):
    schedule = make_schedule("gpipe", K, M, "never")
    return replay(schedule, lambda kind, _stage: UNIT[kind], crossing)


def test_messages_take_time_one_after_the_other():
    """F takes 1 second and its message 3, so the second message waits for the first."""
    by_kind = timed(2, 1, lambda kind, _stage: Crossing(0.5 if kind == "F" else 0.25))
    assert by_kind.step_time == 1 + 0.5 + 1 + 2 + 0.25 + 2
    forwards = make_schedule("gpipe", 2, 3, "never").forward_only()
    for blocking, first, second in (
        (False, [0, 1, 2], [1 + 3 + 0.5, 1 + 6 + 0.5, 1 + 9 + 0.5]),
        (True, [0, 4, 8], [4.5, 8.5, 12.5]),
    ):
        crossing = Crossing(3.0, latency=0.5, blocking=blocking)
        timeline = replay(forwards, lambda *_: 1.0, lambda *_, crossing=crossing: crossing)
        assert [s.start for s in timeline.on(0)] == first
        assert [s.start for s in timeline.on(1)] == second


LINE = timed(2, 1)  # F0 of both stages, then B0


def test_chrome_trace_and_drawing():
    trace = json.loads(json.dumps(LINE.to_chrome("K=2")))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in slices] == [
        ("F0", 0, 0.0, 1e6),
        ("F0", 1, 1e6, 1e6),
        ("B0", 1, 2e6, 2e6),
        ("B0", 0, 4e6, 2e6),
    ]
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    assert names == {"K=2", "stage 0", "stage 1"}
    assert LINE.to_text().splitlines() == [
        "stage 0 | F0 .  .  .  B0 B0",
        "stage 1 | .  F0 B0 B0 .  .",
    ]


def test_ranks_that_hold_several_stages():
    """Four stages on two ranks: idle time is that of the ranks, and there is a track for each."""
    spans = tuple(Span("F", j, 0, float(j), j + 1.0) for j in range(4))
    line = Timeline(spans, 4, stages_per_rank=2)
    assert line.idle_over_total == pytest.approx(0.5)
    assert [s.stage for s in line.on(0)] == [0, 2]
    assert line.to_text().splitlines() == ["rank 0 | F0a .   F0b .", "rank 1 | .   F0a .   F0b"]
    events = line.to_chrome()["traceEvents"]
    assert [e["tid"] for e in events if e["ph"] == "X"] == [0, 1, 0, 1]
