"""Tables 2 and 3: which runs have the paper's cells, and which decide."""

from dataclasses import replace

import pytest
from recorded import changed_runs, with_values

from repro.experiments.table2 import report as table2
from repro.experiments.table3 import report as table3
from repro.harness.frame import select
from repro.report.compare import fits

K4_M32 = "speed, K=4, M=32 over K=2, M=1"


def claim_on(results, what=K4_M32):
    wanted = ("Table 2, Transformer", what)
    (found,) = [c for c in table2.claims(results) if (c.exhibit, c.what) == wanted]
    return found


def test_a_measurement_at_the_papers_size_counts_before_a_simulation(reference):
    def on_gpus(run):
        """Two cores' steps, as if they were of the paper's model."""
        if (run.experiment, run.model, run.fidelity) != ("table2", "transformer", "measured"):
            return run
        args = table2.SIZES[run.model]["paper"]
        return replace(run, spec=run.spec.model_copy(update={"model_args": args}))

    results = changed_runs(reference, on_gpus)
    at_k2 = "speed, K=2, M=4 over K=2, M=1"
    measured = claim_on(results, at_k2)
    assert measured.fidelity == "measured"
    assert measured.verdict == "not reproduced"
    value, low, high = measured.ours[0]
    assert low < value < high
    # K=4 is on no two cores, and a smaller model is no evidence.
    assert claim_on(results).fidelity == "simulated"
    assert claim_on(reference, at_k2).fidelity == "simulated"


def test_every_setting_decides_and_each_is_divided_by_its_own_base(reference):
    assert len(claim_on(reference).ours) == 4, "three cuts at half widths, and one"
    assert claim_on(reference).verdict == "consistent"

    def slow(run):
        """The base under one of the cuts."""
        if run.group != "transformer-narrow-share-by-memory" or (run.K, run.M) != (2, 1):
            return run
        return with_values(run, step_s=[10 * run.step_s])

    assert claim_on(changed_runs(reference, slow)).verdict == "cannot tell"


def test_what_is_simulated_fits_its_device(reference):
    """No cell has a verdict by a step that the device could not have run."""
    for report in (table2, table3):
        ours = select(report.cells(reference), fidelity="simulated")
        assert len(ours)
        assert all(map(fits, ours["run"]))


@pytest.mark.parametrize("cut", [None, "minimum-variance", "cumulative-share"])
@pytest.mark.parametrize("report", [table2, table3])
def test_a_cut_without_results_leaves_no_claim_that_holds(reference, report, cut):
    runs = [run for run in reference.runs if run.spec.partitioner != cut]
    verdicts = {claim.verdict for claim in report.claims(replace(reference, runs=runs))}
    assert verdicts == {"cannot tell"}
