"""Tables 2 and 3: which runs are set beside the paper's cells, and which decide."""

from dataclasses import replace

import pytest
from recorded import at_scale, changed_runs

from experiments.table2 import report as table2
from experiments.table3 import report as table3
from repro.harness.frame import select
from repro.report.compare import fits
from repro.report.exhibit import printed

K4_M32 = "speed, K=4, M=32 over K=2, M=1"


def claim_on(results, exhibit="Table 2, Transformer", what=K4_M32):
    (found,) = [c for c in table2.claims(results) if (c.exhibit, c.what) == (exhibit, what)]
    return found


def test_a_measurement_at_the_papers_size_stands_before_a_simulation(reference):
    def on_gpus(run):
        """Two cores' steps, as if they were of the paper's model."""
        if (run.experiment, run.model, run.fidelity) != ("table2", "transformer", "measured"):
            return run
        args = table2.SIZES[run.model]["paper"]
        return replace(run, spec=run.spec.model_copy(update={"model_args": args}))

    results = changed_runs(reference, on_gpus)
    measured = claim_on(results, what="speed, K=2, M=4 over K=2, M=1")
    assert measured.fidelity == "measured"
    assert measured.verdict == "not reproduced"
    value, low, high = measured.ours[0]
    assert low < value < high
    # K=4 is on no two cores, and a smaller model is no evidence.
    assert claim_on(results).fidelity == "simulated"
    assert claim_on(reference, what="speed, K=2, M=4 over K=2, M=1").fidelity == "simulated"


def test_every_setting_decides_and_each_is_divided_by_its_own_base(reference):
    ours = select(table2.cells(reference), fidelity="simulated")
    assert {*select(ours, K=2, M=1)["ratio"]} == {1.0}
    settings = ours.groupby("model")["setting"].unique()
    assert {*settings["amoebanet-d"]} == {"time", "share", "variance"}
    half = {f"{cut}, half widths" for cut in settings["amoebanet-d"]}
    assert {*settings["transformer"]} == half | {"time"}
    claim = claim_on(reference)
    assert len(claim.ours) == 4
    assert claim.verdict == "consistent"

    def slow(run):
        """The base under one of the cuts."""
        if run.group != "transformer-narrow-share-by-memory" or (run.K, run.M) != (2, 1):
            return run
        last = run.rounds[-1]
        values = {**last.values, "step_s": [10 * last.step_s]}
        return replace(run, rounds=(replace(last, values=values),))

    assert claim_on(changed_runs(reference, slow)).verdict == "cannot tell"


def test_what_is_simulated_fits_its_device(reference):
    """No cell has a verdict by a step that the device could not have run."""
    for report in (table2, table3):
        ours = select(report.cells(reference), fidelity="simulated")
        assert len(ours)
        assert all(map(fits, ours["run"]))


def test_the_grid_has_the_papers_number_over_ours(reference):
    (table,) = table2.tables(reference)
    lines = table.shown.set_index("model")
    assert len(lines) == 6
    line = lines.loc["Transformer, M=32"]
    assert line["K=8: paper / simulated"].startswith("6.3 / 5.61 (4.")
    assert line["textbook"] == "1.94, 3.66, 6.56"
    assert lines.loc["AmoebaNet-D, M=32", "torchgpipe"].endswith(", 4.95")
    assert {*table.data["setting"]} >= {"share", "time, half widths", table2.SMALLER}
    tiny = changed_runs(reference, lambda run: at_scale(run, "smoke"))
    (table,) = table2.tables(tiny)
    assert not {"torchgpipe", "K=8: paper / simulated"} & {*table.shown}
    assert not {"paper", "verdict"} & {*table.data}


@pytest.mark.parametrize(("name", "K", "M"), [("table2", 2, 1), ("table3", 2, 32)])
def test_the_cell_that_the_others_are_divided_by_is_no_claim(reference, name, K, M):
    report = {"table2": table2, "table3": table3}[name]
    claims = [*report.claims(replace(reference, runs=[]))]
    assert len(claims) == len(printed(name).query("K != @K or M != @M"))
    assert {claim.verdict for claim in claims} == {"not tested here"}


def test_a_smaller_model_in_table_3_is_not_judged(reference):
    def smaller(run):
        if (run.experiment, run.fidelity) != ("table3", "simulated"):
            return run
        return replace(run, spec=run.spec.model_copy(update={"model_args": {"L": 2}}))

    assert {claim.verdict for claim in table3.claims(reference)} != {"not tested here"}
    results = changed_runs(reference, smaller)
    assert {claim.verdict for claim in table3.claims(results)} == {"not tested here"}
    shown = table3.tables(results)[0].shown
    assert {*shown["simulated"]} == {"not run"}
    assert "not run" not in {*shown["emulated"]}


@pytest.mark.parametrize("cut", [None, "minimum-variance", "cumulative-share"])
@pytest.mark.parametrize("report", [table2, table3])
def test_a_cut_without_results_leaves_no_claim_that_holds(reference, report, cut):
    runs = [run for run in reference.runs if run.spec.partitioner != cut]
    verdicts = {claim.verdict for claim in report.claims(replace(reference, runs=runs))}
    assert verdicts == {"cannot tell"}
