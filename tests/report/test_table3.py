"""What Table 3 says of a model that is smaller than the paper's."""

from dataclasses import replace

from recorded import changed_runs

from experiments.table3 import report as table3
from repro.report.compare import rows_of


def test_another_size_is_named_and_not_judged(reference):
    runs = rows_of(reference, experiment="table3", fidelity="simulated")

    def smaller(run):
        spec = run.spec.model_copy(update={"model_args": {"L": 2}})
        return replace(run, spec=spec) if run in runs else run

    results = changed_runs(reference, smaller)
    assert table3.evidence(results) == {}
    lines = table3.tables(results)[0].shown
    assert {title for title in lines["model"] if "(" in title} == {
        "AmoebaNet-D (laptop on amd-epyc-2c)",
        "Transformer (laptop on amd-epyc-2c)",
    }
    of_another_size = lines[lines["model"].str.contains("(", regex=False)]
    assert set(of_another_size["verdict"]) == {"-"}
