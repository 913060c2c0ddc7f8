"""Numbers and drawings that are read off spans."""

import json

import pytest

from repro.gpipe.schedule.timeline import COLUMNS, Span, Timeline

SPANS = (
    Span("F", 0, 0, 10.0, 11.0),
    Span("F", 1, 0, 11.0, 12.0),
    Span("B", 1, 0, 12.0, 14.0),
    Span("B", 0, 0, 14.0, 16.0),
)
LINE = Timeline(SPANS, 2)


def test_both_bubbles():
    assert LINE.step_time == 6.0
    assert LINE.busy() == 6.0
    assert LINE.busy(0) == LINE.busy(1) == 3.0
    assert LINE.bubble_over_total == pytest.approx(0.5)
    assert LINE.bubble_over_work == pytest.approx(1.0)


def test_update_counts_as_work_and_setup_does_not():
    line = Timeline(
        (Span("setup", 0, -1, 0.0, 1.0), Span("F", 0, 0, 1.0, 2.0), Span("U", 0, -1, 2.0, 4.0)), 1
    )
    assert line.bubble_over_total == pytest.approx(0.25)


def test_rows_there_and_back():
    rows = LINE.to_rows()
    assert list(rows[0]) == list(COLUMNS)
    assert Timeline.from_rows(rows, 2) == LINE


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "Q"}, "allowed are kinds F, R, B, I, W, U, setup"),
        ({"stage": 2}, "stages 0 to 1"),
        ({"stage": 1.0}, "stage = 1.0: allowed is int"),
        ({"end": float("inf")}, "end=inf"),
        ({"end": 9.0}, "an end after the start"),
    ],
)
def test_rows_that_are_no_spans_are_one_line(changed, words):
    row = LINE.to_rows()[0]
    for bad in (row | changed, {name: row[name] for name in row if name not in changed}):
        with pytest.raises(
            ValueError, match=words if bad.keys() == row.keys() else "None: allowed is"
        ):
            Timeline.from_rows([bad], 2)


def test_chrome_trace_is_json_in_microseconds():
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


def test_drawn_in_slots():
    assert LINE.to_text().splitlines() == [
        "stage 0 | F0 .  .  .  B0 B0",
        "stage 1 | .  F0 B0 B0 .  .",
    ]


def test_ranks_that_hold_several_stages():
    """Four stages on two ranks: idle time is that of the ranks, and there is a track for each."""
    spans = tuple(Span("F", j, 0, float(j), j + 1.0) for j in range(4))
    line = Timeline(spans, 4, stages_per_rank=2)
    assert line.bubble_over_total == pytest.approx(0.5)
    assert line.bubble_over_work == pytest.approx(1.0)
    assert [s.stage for s in line.on(0)] == [0, 2]
    assert line.to_text().splitlines() == ["rank 0 | F0a .   F0b .", "rank 1 | .   F0a .   F0b"]
    events = line.to_chrome()["traceEvents"]
    assert [e["tid"] for e in events if e["ph"] == "X"] == [0, 1, 0, 1]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"rank 0", "rank 1"}


def test_empty():
    empty = Timeline((), 3)
    assert (empty.step_time, empty.bubble_over_total, empty.bubble_over_work) == (0.0, 0.0, 0.0)
