"""How far predicted steps are off, in which range new ones lie, and what the runtime adds."""

from math import exp

import pytest
from recorded import changed_runs, with_values

from repro.costs.error_bars import CALIBRATED, DATA_SHEET, RATIO, step_error
from repro.experiments.advise import report as advise
from repro.experiments.costs.report import steps
from repro.experiments.published_errors import nine_of_ten, sizes
from repro.harness.frame import select
from repro.report.compare import of_exhibits


def test_the_ranges_contain_nine_of_ten_recorded_steps(reference):
    frame = steps(of_exhibits(reference))
    published, timed = (select(frame, durations=kind) for kind in (DATA_SHEET, CALIBRATED))
    by_sheet, by_layers = map(step_error, (DATA_SHEET, CALIBRATED))
    for errors, factor, source in (
        (published["ratio"], RATIO, ""),
        (published["step"], by_sheet.factor, by_sheet.source),
        (timed["step"], by_layers.factor, by_layers.source),
    ):
        assert exp(nine_of_ten(sizes(errors))) == pytest.approx(factor, abs=5e-5)
        assert not source or source.startswith(f"{len(sizes(errors))} steps ")
    assert by_sheet.ratio == RATIO


def test_the_advised_plan_is_marked_with_its_step_over_the_fastest(reference):
    def faster(run):
        """The fifth plan in half of its time; what is predicted stays."""
        if run.experiment != "advise" or (run.schedule, run.M, run.recompute) != (
            "gpipe",
            4,
            "never",
        ):
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
