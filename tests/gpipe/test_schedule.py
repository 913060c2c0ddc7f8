"""Schedules are drawn as tables, and hold what a pipeline must hold for any K and M.

tests/report/test_player.py compares every order with a second implementation, in JavaScript.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import accumulate, pairwise, product

import pytest
from examples import refused
from hypothesis import given
from hypothesis import strategies as st

from repro.gpipe.schedule.actions import COMPUTE, GRADIENT, Schedule
from repro.gpipe.schedule.kinds import RECOMPUTE_MODES, SCHEDULES, Kind, make_schedule
from repro.gpipe.schedule.replay import Crossing, draw, replay

UNIT = {"F": 1.0, "R": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


@st.composite
def of_any_kind(draw):
    """Any schedule, of up to seven ranks; interleaved ones have up to four stages a rank."""
    name, ranks = draw(st.sampled_from(sorted(SCHEDULES))), draw(st.integers(1, 7))
    held = draw(st.integers(2, 4)) if SCHEDULES[name].interleaved else 1
    allowed = [
        mode for mode in RECOMPUTE_MODES if mode != "except_last" or not SCHEDULES[name].ready
    ]
    recompute = draw(st.sampled_from(allowed))
    return make_schedule(name, ranks * held, draw(st.integers(1, 17)), recompute, held)


def drawn(schedule):
    return [line.split("|")[1].split() for line in draw(schedule).splitlines()]


@pytest.mark.parametrize(
    ("arguments", "rows"),
    [
        (  # Figure 2 (c)
            ("gpipe", 4, 4, "never"),
            [
                "F0 F1 F2 F3 .  .  .  .  .  .  B3 B2 B1 B0",
                ".  F0 F1 F2 F3 .  .  .  .  B3 B2 B1 B0 .",
                ".  .  F0 F1 F2 F3 .  .  B3 B2 B1 B0 .  .",
                ".  .  .  F0 F1 F2 F3 B3 B2 B1 B0 .  .  .",
            ],
        ),
        # Figure 2 (b) is one micro-batch
        (("gpipe", 3, 1, "never"), ["F0 . . . . B0", ". F0 . . B0 .", ". . F0 B0 . ."]),
        (
            ("1f1b", 3, 4, "never"),
            [
                "F0 F1 F2 .  .  B0 F3 B1 .  B2 .  B3",
                ".  F0 F1 .  B0 F2 B1 F3 B2 .  B3 .",
                ".  .  F0 B0 F1 B1 F2 B2 F3 B3 .  .",
            ],
        ),
        # R comes before the gradient arrives, or after it
        (("gpipe", 2, 2, "always"), ["F0 F1 R1 . . B1 R0 B0", ". F0 F1 R1 B1 R0 B0 ."]),
        (("gpipe-late", 2, 1, "always"), ["F0 . . . R0 B0", ". F0 R0 B0 . ."]),
        # what comes first in backward is kept
        (("gpipe", 2, 2, "except_last"), ["F0 F1 . . B1 R0 B0", ". F0 F1 B1 R0 B0 ."]),
        (  # Figure 4 of arXiv:2104.04473 with two ranks; `a` and `b` are the stages of a rank
            ("interleaved-1f1b", 4, 2, "never", 2),
            ["F0a F1a F0b F1b .   B0b .   B1b B0a B1a", ".   F0a F1a F0b B0b F1b B1b B0a B1a ."],
        ),
        (  # W fills each wait, and F comes before it
            ("zb", 2, 3, "never"),
            ["F0 F1 F2 I0 W0 I1 W1 I2 W2 .", ".  F0 I0 F1 I1 F2 I2 W0 W1 W2"],
        ),
    ],
)
def test_schedules_drawn(arguments, rows):
    assert drawn(make_schedule(*arguments)) == [row.split() for row in rows]


def complete(schedule: Schedule) -> None:
    """Each stage does each work once, and receives each message in the order of sending."""
    K, M = len(schedule.orders), schedule.micro_batches
    works = [work for order in schedule.orders for work in order if work[0] != "R"]
    kinds = {kind for kind, _, _ in works}
    assert kinds in ({"F"}, {"F", "B"}, {"F", "I", "W"})
    assert Counter(works) == Counter(product(kinds, range(schedule.stages), range(M)))
    messages = defaultdict(lambda: {"Send": [], "Recv": []})
    for rank, order in enumerate(schedule.orders):
        assert all(stage % K == rank for _, stage, _ in order)
        for a in schedule.actions(rank):
            if a.kind in ("Send", "Recv"):
                ahead = 1 if a.of == "F" else -1
                maker = a.stage if a.kind == "Send" else a.stage - ahead
                link = maker % K, (maker + ahead) % K, a.of
                messages[link][a.kind].append((maker, a.micro_batch))
    assert all(each["Send"] == each["Recv"] for each in messages.values())


@given(of_any_kind())
def test_every_schedule_is_complete_and_recomputes_one_micro_batch_at_a_time(schedule):
    """So the recomputed activations of at most one micro-batch are live."""
    complete(schedule)
    complete(schedule.forward_only())
    for order in schedule.orders:
        done = {kind: {work[1:] for work in order if work[0] == kind} for kind in "FR"}
        backward = [work for work in order if work[0] in ("R", *GRADIENT)]
        for before, after in pairwise(backward):
            if before[0] == "R":
                assert after[0] in GRADIENT
                assert after[1:] == before[1:]
        if schedule.recompute != "except_last":
            assert done["R"] == (done["F"] if schedule.recompute == "always" else set())


@given(of_any_kind(), st.lists(st.floats(0.1, 5), min_size=7, max_size=7))
def test_happens_before(schedule, seconds):
    K = len(schedule.orders)
    late = Crossing(latency=0.25)
    timeline = replay(
        schedule, lambda kind, _stage: UNIT[kind], lambda *_: late, update=seconds[:K]
    )
    spans = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
    assert len(spans) == K + sum(map(len, schedule.orders))
    message = 0.25 if K > 1 else 0.0
    ended = max(s.end for s in timeline.spans if s.kind in COMPUTE)
    for (kind, j, i), span in spans.items():
        if kind == "F" and j:
            assert span.start >= spans["F", j - 1, i].end + message
        if kind in GRADIENT:
            assert span.start >= spans["F", j, i].end
            if j + 1 < schedule.stages:
                assert span.start >= spans[kind, j + 1, i].end + message
        if kind == "W":
            assert span.start >= spans["I", j, i].end
        if kind == "U":  # no rank updates before all have ended their work
            assert (span.start, span.end) == (ended, ended + seconds[j])
    for rank in range(K):
        own = timeline.on(rank)
        assert all(a.end <= b.start for a, b in pairwise(own)), "a rank does one thing at a time"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpipe", 0, 2), "stages=0.*at least 1"),
        (("gpipe", 2, 2, "never", 2), "stages_per_rank=2: must be 1 for schedule='gpipe'"),
        (("interleaved-1f1b", 3, 2, "never", 2), "stages=3: must be a multiple"),
    ],
)
def test_one_line_for_a_wrong_argument(arguments, words):
    refused(words, make_schedule, *arguments)


@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(1, 14),
    st.sampled_from(["always", "never"]),
    st.randoms(use_true_random=False),
)
def test_what_is_ready_never_deadlocks_and_keeps_the_order_of_each_kind(K, M, limit, mode, lot):
    """Whatever works and messages take."""
    lengths: dict[tuple[str, int], float] = {}
    crossings: dict[tuple[str, int], Crossing] = {}

    def length(kind: str, stage: int) -> float:
        return lengths.setdefault((kind, stage), lot.choice([0.0, 0.1, 1.0, lot.random()]))

    def crossing(kind: str, stage: int) -> Crossing:
        made = Crossing(lot.random(), lot.choice([0.0, 3.0]), blocking=lot.random() < 0.5)
        return crossings.setdefault((kind, stage), made)

    schedule = replace(make_schedule("zb", K, M, mode), limit=limit)
    done = replay(schedule, length, crossing)
    orders = [[span[:3] for span in done.on(rank)] for rank in range(K)]
    fixed = replace(schedule, orders=orders, limit=None)
    complete(fixed)
    for rank, order in enumerate(orders):
        for kind in "FIW" if mode == "never" else "FRIW":
            assert [work for work in order if work[0] == kind] == [
                (kind, rank, i) for i in range(M)
            ]
        kept = accumulate((kind == "F") - (kind == "W") for kind, _, _ in order)
        assert max(kept) <= limit
    assert replay(fixed, length, crossing) == done, "a fixed schedule takes as long"


def test_ranks_that_wait_for_each_other_are_named():
    works = [
        [(word[0], j, int(word[1])) for word in order.split()]
        for j, order in enumerate(["F0 B0 F1 B1", "F0 F1 B0 B1"])
    ]
    words = "deadlocks: Recv B0 on stage 0 waits for rank 1, Recv F1 on stage 1 waits for rank 0"
    refused(words, draw, Schedule("mine", 2, 2, "never", works))


def test_a_kind_is_one_function(monkeypatch):
    """Recompute, messages and updates are put in for it."""

    def pairs(rank, _ranks, micro_batches):
        return [(kind, rank, i) for i in range(micro_batches) for kind in "FB"]

    monkeypatch.setitem(SCHEDULES, "pairs", Kind(pairs))
    rows = drawn(make_schedule("pairs", 3, 4))
    assert [" ".join(row[:6]) for row in rows] == [
        "F0 R0 . . . .",
        ". F0 R0 . . B0",
        ". . F0 R0 B0 .",
    ]
