"""How far predicted steps are off, in which range new ones lie, and what the runtime adds."""

import json

from recorded import changed_runs, with_values

from repro.costs.error_bars import FILE, RATIO
from repro.experiments.advise import report as advise
from repro.experiments.costs.record import factors


def test_the_ranges_are_those_of_recorded_steps(reference):
    """After a change of either: python -m repro.experiments.costs.record."""
    assert json.loads(FILE.read_text("utf-8")) == factors(reference)
    assert 1 < RATIO < 1.5


def test_the_advised_plan_is_marked_with_its_step_over_the_fastest(reference):
    def faster(run):
        """The fifth plan in half of its time; what is predicted stays."""
        if run.experiment != "advise" or (run.schedule, run.M, run.checkpoint) != (
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
