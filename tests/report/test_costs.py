"""How far predicted steps are off, in which range new ones lie, and what the runtime adds."""

import json

import pytest
from recorded import changed_runs, with_values

from experiments.advise import report as advise
from experiments.costs import report as costs
from experiments.costs.record import factors
from experiments.runtime import report as runtime
from repro.costs.error_bars import FILE, RATIO


def test_the_ranges_are_those_of_recorded_steps(reference):
    """After a change of either: python -m experiments.costs.record."""
    assert json.loads(FILE.read_text("utf-8")) == factors(reference)
    assert 1 < RATIO < 1.5


def test_nine_of_ten_and_half_and_twice_as_fast_are_equally_wrong(reference):
    errors = costs.steps(reference)["ratio"]
    assert costs.nine_of_ten(range(10, 0, -1)) == 9
    assert costs.sizes(0 * errors - 0.5) == pytest.approx(costs.sizes(0 * errors + 1.0))


def test_a_ratio_is_over_the_first_step_of_its_source(reference):
    frame = costs.steps(reference)
    lines = frame[frame["source"] == "torchgpipe, AmoebaNet-D on P40"]
    assert list(lines["ratio"].isna()) == [True] + 8 * [False]
    # As torchgpipe prints them.
    published = 41.133 / 26.733
    first, second = lines["step"].iloc[:2]
    assert lines["ratio"].iloc[1] == pytest.approx((1 + second) / (1 + first) - 1)
    assert lines["textbook"].iloc[1] == pytest.approx((2 * 4 / 5) / published - 1)


def test_the_advised_plan_is_marked_with_its_step_over_the_fastest(reference):
    def faster(run):
        """The fifth plan in half of its time; what is predicted stays."""
        if run.experiment != "advise" or (run.schedule, run.M, run.remat) != ("gpipe", 4, "never"):
            return run
        return with_values(run, step_s=[s / 2 for s in run.rounds[0].values["step_s"]])

    marks = []
    for results in (reference, changed_runs(reference, faster)):
        plans = advise.plans(results)
        (marked,) = [plan for plan in plans["plan"] if "advised" in plan]
        assert marked == plans["plan"].iloc[0]
        marks.append(marked.partition(" (")[2])
    assert marks[0] == "advised, the fastest)"
    assert marks[1].startswith("advised, 1.")


def test_the_overhead_is_that_over_the_best_possible_step(reference):
    frame = runtime.timed(reference, "known-durations").set_index(["F", "K", "M"])
    line = frame.loc[(0.02, 8, 32)]
    # 39 forwards, 32 recomputations and backwards of twice the time, 7 backwards before them.
    assert line["best_s"] == pytest.approx(0.02 * (39 + 32 * 3 + 7 * 2))
    assert line[runtime.OVERHEAD] == pytest.approx(
        100 * (line["step_s"] / line["best_s"] - 1), abs=0.1
    )
