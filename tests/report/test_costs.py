"""How far predicted steps are off, in which range new ones lie, and what the runtime adds."""

import json
from dataclasses import replace

import pytest
from recorded import changed_runs

from experiments.advise import report as advise
from experiments.costs import report as costs
from experiments.costs.record import factors
from experiments.runtime import report as runtime
from repro.costs.error_bars import CALIBRATED, DATA_SHEET, FILE, RATIO, step_error


def test_the_ranges_are_those_of_recorded_steps(reference):
    """After a change of either: python -m experiments.costs.record."""
    assert json.loads(FILE.read_text("utf-8")) == factors(reference)
    assert 1 < RATIO < 1.5


def test_a_range_is_that_of_where_durations_come_from():
    bars = [step_error(durations) for durations in (DATA_SHEET, CALIBRATED)]
    assert all(bar and bar.ends(bar.factor) == pytest.approx((1.0, bar.factor**2)) for bar in bars)
    assert step_error("") is None, "of fitted profiles no step was compared"


def test_nine_of_ten_and_half_and_twice_as_fast_are_equally_wrong(reference):
    errors = costs.steps(reference)["ratio"]
    assert costs.nine_of_ten(range(10, 0, -1)) == 9
    assert costs.sizes(0 * errors - 0.5) == pytest.approx(costs.sizes(0 * errors + 1.0))


def test_a_ratio_is_over_the_first_step_of_its_source(reference):
    frame = costs.steps(reference)
    lines = frame[frame["source"] == "torchgpipe, AmoebaNet-D on P40"]
    assert list(lines["ratio"].isna()) == [True] + 8 * [False]
    first, second = lines["run"].iloc[:2]
    # As torchgpipe prints them.
    published = 41.133 / 26.733
    simulated = second.throughput / first.throughput
    assert lines["step"].iloc[1] == pytest.approx(second.throughput / 41.133 - 1)
    assert lines["ratio"].iloc[1] == pytest.approx(simulated / published - 1)
    assert lines["textbook"].iloc[1] == pytest.approx((2 * 4 / 5) / published - 1)


def test_steps_of_dropped_groups_are_passed_over(reference):
    """Those measured beside fitted devices are still in a journal, with what was predicted."""
    dropped = {run.group for run in reference.by_experiment["costs"] if run.spec.N == 64}
    assert dropped >= {"amoebanet-d-here", "resnet50-here"}
    frame = costs.steps(reference)
    timed = frame[frame["durations"] == CALIBRATED]
    assert len(timed)
    assert dropped.isdisjoint(run.group for run in timed["run"])


def test_the_advised_plan_is_marked_with_its_step_over_the_fastest(reference):
    def faster(run):
        """The fifth plan in half of its time; what is predicted stays."""
        if run.experiment != "advise" or (run.schedule, run.M, run.remat) != ("gpipe", 4, "never"):
            return run
        rounds = [
            replace(each, values={**each.values, "step_s": [s / 2 for s in each.values["step_s"]]})
            for each in run.rounds
        ]
        return replace(run, rounds=tuple(rounds))

    marks = []
    for results in (reference, changed_runs(reference, faster)):
        plans = advise.plans(results)
        (marked,) = [plan for plan in plans["plan"] if "advised" in plan]
        assert marked == plans["plan"].iloc[0]
        marks.append(marked.partition(" (")[2])
    assert marks[0] == "advised, the fastest)"
    assert marks[1].startswith("advised, 1.7")


def test_the_overhead_is_that_over_the_best_possible_step(reference):
    frame = runtime.timed(reference, "known-durations").set_index(["F", "K", "M"])
    line = frame.loc[(0.02, 8, 32)]
    # 39 forwards, 32 recomputations and backwards of twice the time, 7 backwards before them.
    assert line["best_s"] == pytest.approx(0.02 * (39 + 32 * 3 + 7 * 2))
    assert line[runtime.OVERHEAD] == pytest.approx(
        100 * (line["step_s"] / line["best_s"] - 1), abs=0.1
    )
