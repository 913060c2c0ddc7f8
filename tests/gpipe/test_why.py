"""Critical paths, and what changes to a run would give, from costs that are known."""

from itertools import pairwise

import pytest
from examples import refused
from hypothesis import given
from hypothesis import strategies as st
from test_schedule import UNIT, of_any_kind

from repro.gpipe.schedule.actions import COMPUTE
from repro.gpipe.schedule.critical import by_stage, critical_path
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.gpipe.schedule.what_if import BALANCE, CHANGES, DOUBLED, LINK, NEVER, Explanation

SHORT = {"setup": "s", "transfer": "t", "gap": "g"}


def drawn(legs):
    """`F0@0 F0@1 ...`: kind, micro-batch, stage."""
    return " ".join(f"{SHORT.get(leg.kind, leg.kind)}{leg.micro_batch}@{leg.stage}" for leg in legs)


def path(schedule, transfer=0.0, duration=lambda a: UNIT[a.kind]):
    return drawn(critical_path(replay(schedule, duration, transfer), schedule))


def test_critical_paths():
    schedule = make_schedule("gpipe", 2, 2, "never")
    assert path(schedule) == "F0@0 F0@1 F1@1 B1@1 B1@0 B0@0"
    assert path(schedule, 0.5) == "F0@0 t0@1 F0@1 F1@1 B1@1 t1@0 B1@0 B0@0"
    # A message on its way when the stage became free: F1 of stage 0 ends at 2 and arrives at 5;
    # stage 1 ends F0 at 4.9, long after F1 was sent.
    late = path(schedule, 3.0, lambda a: 1.0 if a.stage == 0 else 0.9)
    assert late.startswith("F0@0 t0@1 F0@1 g1@1 F1@1 B1@1")
    # Split backwards: stage 1 waits for I of stage 2, and not for its W. The last W ends the step.
    split = make_schedule("zb-h1", 3, 3, "never")
    assert path(split) == "F0@0 F0@1 F0@2 I0@2 I0@1 I0@0 W0@0 I1@0 W1@0 I2@0 W2@0"
    assert "t2@1 I2@1 t2@0 I2@0 W2@0" in path(split, 2.0)
    # K=2, stages 0 and 2 on the first rank: what stage 2 waits for is a message of stage 1.
    held = make_schedule("interleaved-1f1b", 4, 2, "never", 2)
    assert path(held, 0.5).startswith("F0@0 t0@1 F0@1 t0@2 F0@2 t0@3 F0@3 B0@3")


@given(schedule=of_any_kind(), transfer=st.floats(0, 10), data=st.data())
def test_legs_abut_and_sum_to_the_step(schedule, transfer, data):
    seconds = st.floats(0.01, 10)  # work of no length has no order
    costs = {kind: data.draw(seconds) for kind in COMPUTE} | {"F": 1.0 + data.draw(seconds)}
    timeline = replay(schedule, lambda a: costs[a.kind] * (1 + a.stage % 3), transfer)
    legs = critical_path(timeline, schedule)
    assert legs[0].start == timeline.start
    assert legs[-1].end == timeline.start + timeline.step_time
    assert all(a.end == b.start for a, b in pairwise(legs))
    assert all(leg.seconds > 0 for leg in legs)
    of_stages = by_stage(legs, schedule.stages)
    assert sum(sum(kinds.values()) for kinds in of_stages) == pytest.approx(timeline.step_time)
    if not transfer:
        assert sum(kinds["transfer"] + kinds["gap"] for kinds in of_stages) < 1e-9


def explained(schedule, duration=lambda action: UNIT[action.kind], transfer=0.0, examples=None):
    return Explanation.of(replay(schedule, duration, transfer), schedule, examples)


def steps(explanation) -> dict[str, float]:
    return {change.name: change.step_s for change in explanation.changes}


@given(schedule=of_any_kind(), transfer=st.floats(0, 1), data=st.data())
def test_unchanged_the_replay_of_known_costs_is_the_step(schedule, transfer, data):
    """Where messages take less than an action."""
    costs = {kind: data.draw(st.floats(1, 5)) for kind in COMPUTE}
    found = explained(schedule, lambda a: costs[a.kind], transfer)
    assert found.base_s == pytest.approx(found.timeline.step_time)
    assert [c.step_s for c in found.changes] == sorted(c.step_s for c in found.changes)
    assert all(c.factor * c.step_s == pytest.approx(found.base_s) for c in found.changes)
    assert {c.name for c in found.changes} <= set(CHANGES)
    gains = [change.factor for change in found.changes if change.name in (LINK, BALANCE)]
    assert all(gain >= 1 - 1e-9 for gain in gains)


def test_every_change_by_hand():
    """Section 2.3: (M+K-1)F + M(R+B) + (K-1)B; with F:R:B = 1:1:2 and K=2 it is 4M + 3."""
    found = steps(explained(make_schedule("gpipe", 2, 4)))
    assert found == {BALANCE: 19, LINK: 19, DOUBLED: (4 * 8 + 3) / 2, NEVER: 15}
    # Equal stages are not taken for better where they are slower. M=1: R of stage 0 is hidden, that
    # of stage 1 is not; 1.2 and 0.8 parts beat equal ones.
    part = (1.2, 0.8)
    uneven = explained(make_schedule("gpipe", 2, 1), lambda a: UNIT[a.kind] * part[a.stage])
    assert uneven.base_s == pytest.approx(6.8)
    assert steps(uneven)[BALANCE] == uneven.base_s


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


def test_spans_of_another_run_are_refused():
    schedule = make_schedule("gpipe", 2, 4)
    timeline = replay(schedule, lambda a: UNIT[a.kind])
    for other in (make_schedule("gpipe", 2, 3), make_schedule("gpipe", 3, 4)):
        refused("not those of its schedule 'gpipe'", Explanation.of, timeline, other)
    refused("not those of its", Explanation.of, replay(schedule, lambda _a: 0.0), schedule)
