"""The simulator: closed forms, no action before its inputs, more micro-batches never hurt."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.paper import theory
from repro.paper.numbers import zero_bubble
from repro.simulate.breakdown import PARTS, breakdown
from repro.simulate.calibration import Calibration
from repro.simulate.stage_costs import FREE, StageCosts
from repro.simulate.step import simulate

AS_JSON = TypeAdapter(StageCosts)
K, M = st.integers(1, 8), st.integers(1, 20)
SECONDS = st.floats(0.01, 10)


@st.composite
def costs(draw, K):
    """Of K stages, with a link that is sometimes slow and sometimes blocks."""

    def many(length):
        return tuple(draw(st.lists(SECONDS, min_size=length, max_size=length)))

    link = LinkSpeed(
        latency=draw(st.floats(0, 1)),
        bytes_per_second=draw(st.sampled_from([math.inf, 5.0, 0.5])),
        overlap=draw(st.booleans()),
    )
    return StageCosts(many(K), many(K), many(K), many(K - 1), many(K - 1), link, many(K), many(K))


@given(K=K, M=M, F=SECONDS, R=SECONDS, B=SECONDS)
@settings(deadline=None)
def test_uniform_costs_give_the_closed_forms(K, M, F, R, B):
    """Facts: plain (M+K-1)(F+R+B), early (M+K-1)F + M(R+B) + (K-1)B."""
    uniform = StageCosts((F,) * K, (R,) * K, (B,) * K)
    plain = simulate(make_schedule("gpipe-late", K, M), uniform)
    assert plain.step_time == pytest.approx(theory.step_time(K, M, "plain", F, R, B), rel=1e-12)
    unrecomputed = simulate(make_schedule("gpipe", K, M, "never"), uniform)
    assert unrecomputed.step_time == pytest.approx(
        theory.step_time(K, M, "plain", F, 0, B), rel=1e-12
    )
    assert unrecomputed.idle_over_total == pytest.approx((K - 1) / (M + K - 1))
    hidden = replace(uniform, recompute=(min(F, B),) * K)
    early = simulate(make_schedule("gpipe", K, M), hidden)
    assert early.step_time == pytest.approx(
        theory.step_time(K, M, "early", F, min(F, B), B), rel=1e-12
    )
    assert early.idle_over_total == pytest.approx(
        theory.bubble(K, M, "early", F, min(F, B), B), abs=1e-12
    )


@given(data=st.data(), K=st.integers(1, 4), held=st.integers(2, 3), M=st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_ranks_that_hold_several_stages_do_all_of_their_work(data, K, held, M):
    """Set-up and update of a rank are those of its stages, one after the other."""
    some = data.draw(costs(K * held))
    step = simulate(make_schedule("interleaved-1f1b", K * held, M, "always", held), some)
    for rank in range(K):
        own = step.on(rank)
        assert all(a.end <= b.start + 1e-9 for a, b in pairwise(own))
        assert [s.kind for s in own].count("U") == 1
        for kind, seconds in {"F": some.forward, "R": some.recompute, "B": some.backward}.items():
            expected = M * sum(seconds[rank::K])
            assert sum(s.seconds for s in own if s.kind == kind) == pytest.approx(expected)
        assert sum(s.seconds for s in own if s.kind == "setup") == pytest.approx(
            sum(some.setup[rank::K])
        )
        assert own[-1].seconds == pytest.approx(sum(some.update[rank::K]))


def test_layers_are_cut_into_stages():
    layers = Profile((1, 2, 3), (1, 2, 3), (2, 4, 6), (10, 20), (11, 21))
    found = StageCosts.of(
        layers, (1, 2), LinkSpeed(latency=0.5, bytes_per_second=10), (7, 8, 9), setup=0.25
    )
    assert (found.forward, found.backward, found.update) == ((1, 5), (2, 10), (7, 17))
    assert (found.activations, found.gradients) == ((10,), (11,))
    free, uneven = StageCosts((1.0,), (1.0,), (2.0,)), replace(found, backward_weight=(0.5, 9.0))
    for costs in (found, free, uneven):
        assert AS_JSON.validate_python(AS_JSON.dump_python(costs, mode="json")) == costs
    assert uneven.backward_input == (1.5, 1.0)
    assert AS_JSON.dump_python(free, mode="json")["link"]["bytes_per_second"] is None


def test_beyond_the_sizes_that_were_timed_no_layer_gets_faster():
    """A noisy second size, in which one layer took less than in the first."""
    rows: Any = [[1.0, 2.0], [0.9, 3.0]]
    slower: Any = [[2 * seconds for seconds in row] for row in rows]
    found = Calibration(
        forward=rows,
        recompute=slower,
        backward=rows,
        sizes=(4, 8),
        update=(0, 0),
        activations=(0,),
        gradients=(0,),
        link=FREE,
    )
    assert found.profile(6).forward == pytest.approx((0.95, 2.5))
    assert found.profile(16).forward == pytest.approx((0.9, 5.0))
    assert found.profile(2).forward == pytest.approx((0.5, 1.0))
    assert found.profile(2, "never").forward == pytest.approx((1.0, 2.0)), "F builds the graph"
    assert [found.covers(n) for n in (3, 4, 8, 9)] == [False, True, True, False]


@pytest.mark.parametrize("kind", ["1f1b", "zb-h1"])
def test_published_durations_give_the_printed_bubble_rates(kind):
    """Of Zero Bubble (arXiv:2401.10241), to the last printed digit; nothing is fitted."""
    settings = zero_bubble()
    assert len(settings) == 12
    for row in settings:
        assert row.K
        assert row.M
        F, inner, W, message = (row.values[f"{name}_ms"] or 0 for name in ("F", "I", "W", "link"))
        costs = StageCosts(
            forward=(F,) * row.K,
            recompute=(0.0,) * row.K,
            backward=(inner + W,) * row.K,
            backward_weight=(W,) * row.K,
            activations=(1.0,) * (row.K - 1),
            gradients=(1.0,) * (row.K - 1),
            link=LinkSpeed(latency=message),
        )
        step = simulate(make_schedule(kind, row.K, row.M, "never"), costs).step_time
        assert round(1 - row.M * (F + inner + W) / step, 4) == row.values[f"bubble {kind}"]


def usual(kind: str, _stage: int) -> float:
    return {"B": 2.0}.get(kind, 1.0)


@pytest.mark.parametrize(
    ("named", "seconds", "latency", "parts"),
    [
        (("gpipe", 2, 16, "always"), usual, 0, {"bubble": 3 / 67, "recompute": 16 / 67}),
        (
            ("zb-h1", 4, 8, "never"),
            usual,
            0,
            {"computation": 24 / 27, "bubble": 3 / 27, "update": 0},
        ),
        (("gpipe", 2, 8, "never"), lambda *_: 1.0, 0, {"imbalance": 0}),
        (("gpipe", 2, 4, "never"), lambda *_: 1.0, 1, {"transfer": 4 / 24, "imbalance": 0}),
        (
            ("gpipe", 2, 1, "never"),
            lambda _kind, stage: 1.5 - stage,
            0,
            {"imbalance": 0, "transfer": 0},
        ),
    ],
)
def test_breakdowns(named, seconds, latency, parts):
    schedule = make_schedule(*named)
    step = replay(schedule, seconds, lambda *_: Crossing(latency=latency))
    found = breakdown(step, schedule)
    assert sum(found.values()) == pytest.approx(1)
    assert {name: found[name] for name in parts} == pytest.approx(parts)


def test_a_breakdown_has_what_comes_before_and_after_the_micro_batches():
    spans = (
        Span("setup", 0, -1, 0.0, 1.0),
        Span("F", 0, 0, 1.0, 3.0),
        Span("B", 0, 0, 3.0, 7.0),
        Span("U", 0, -1, 7.0, 8.0),
    )
    parts = dict.fromkeys(PARTS, 0.0) | {"computation": 6 / 8, "update": 1 / 8, "setup": 1 / 8}
    assert breakdown(Timeline(spans, 1), make_schedule("gpipe", 1, 1, "never")) == parts
