"""Table 2 where the reference has nothing to show: GPUs that ran it, and models that do not fit."""

from dataclasses import replace

import pytest
from recorded import changed_runs

from experiments.table2 import report as table2
from experiments.table2.figures import best_evidence, measured_cells
from experiments.table2.recorded import SIZES
from repro.claims.all_claims import chosen
from repro.claims.claim import Evidence
from repro.harness.frame import select

CELL = "table2/transformer/K=4/M=32"


def test_a_measurement_at_the_papers_size_stands_before_a_simulation(reference):
    def on_gpus(run):
        """Two cores' steps of K=2 at M=4, as if they were of the paper's model."""
        if (run.experiment, run.model, run.fidelity) != ("table2", "transformer", "measured"):
            return run
        return replace(run, spec=run.spec.model_copy(update={"model_args": SIZES[run.model]}))

    results = changed_runs(reference, on_gpus)
    ours = chosen(table2.evidence(results))
    measured = ours["table2/transformer/K=2/M=4"]
    assert (measured.fidelity, measured.papers_size) == ("measured", True)
    assert measured.low < measured.value < measured.high
    assert ours[CELL].fidelity == "simulated"
    best = select(best_evidence(results), model="transformer", K=2, M=4)
    assert [*best["fidelity"]] == ["measured"]
    assert {*select(measured_cells(results), at_size=False)["model"]} == {"amoebanet-d"}


@pytest.mark.parametrize("K", [2, 4])
def test_what_does_not_fit_earns_no_verdict(reference, K):
    """Of K=2, M=1 alone, by which every cell is divided, or of the cell itself."""

    def too_large(run):
        is_cell = (K, 1 if K == 2 else 32) == (run.K, run.M)
        if run.group != "transformer-narrow-by-memory" or not is_cell:
            return run
        last = run.rounds[-1]
        values = {**last.values, "peak_bytes": [2**50] * K}
        return replace(run, rounds=(replace(last, values=values),))

    results = changed_runs(reference, too_large)
    ours = chosen(table2.evidence(results))[CELL]
    assert isinstance(ours, Evidence)
    assert ours.value != ours.value
    assert ours.why == "counted not to fit the device"
    made = {table.name: table for table in table2.tables(results)}
    line = {"model": "Transformer", "K": "4", "M": "32"}
    verdict = made["table2_predictions"].text("verdict", **line)
    assert verdict == "not tested here: counted not to fit the device"
