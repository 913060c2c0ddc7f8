"""Every exhibit from results that are not whole: what `plots/reference` cannot hold."""

from dataclasses import replace

import pytest
from recorded import changed_runs

from repro.harness import statistics
from repro.harness.results import Results, Run
from repro.report import figures
from repro.report.compare import of_exhibits
from repro.report.tables import tables_of
from repro.report.verdicts import claims_of, lines_of


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No interval is resampled, since only what is in a report is asked here."""
    monkeypatch.setattr(statistics, "_two_levels", lambda sets: (0.9, 1.1))


def is_made(results: Results) -> None:
    for name in results.by_experiment:
        for table in tables_of(results, name):
            assert len(table.shown)
            assert table.csv()
            assert "nan" not in table.markdown().lower().split(), table.name
        for line in lines_of(claims_of(results, name)):
            assert "nan" not in line["ours"]


@pytest.mark.parametrize(
    "is_done",
    [
        lambda number, run: False,
        lambda number, run: number % 4 == 0,
        lambda number, run: (run.K, run.M) not in {(1, 1), (2, 1)},
        lambda number, run: run.fidelity == "simulated",
        lambda number, run: run.fidelity != "simulated" and run.spec.seed == 0,
    ],
    ids=["nothing", "one of four", "no baseline", "simulated", "not simulated, one seed"],
)
def test_a_report_is_made_of_half_recorded_results(reference, is_done):
    runs = [
        run if is_done(number, run) else replace(run, status="planned", rounds=())
        for number, run in enumerate(reference.runs)
    ]
    is_made(replace(reference, runs=runs))


def test_a_report_is_made_of_single_rounds_before_a_failure(reference):
    recorded = [run for run in reference.runs if run.rounds]
    runs = [replace(run, rounds=run.rounds[:1], status="failed(oom)") for run in recorded]
    is_made(replace(reference, runs=runs))


def test_tiny_runs_have_no_exhibit_and_no_claim(tmp_path, reference):
    runs = [run for run in reference.runs if run.experiment in ("table2", "figure1", "bubble")]
    tiny = changed_runs(
        replace(reference, runs=runs),
        lambda run: replace(run, place=run.place._replace(scale="smoke")),
    )
    for name in ("bubble", "table2"):
        assert [table.name for table in tables_of(tiny, name)] == [f"{name}_points"]
        assert [each.path.stem for each in figures.draw(tiny, name, tmp_path)] == [f"{name}_sweep"]
        assert lines_of(claims_of(tiny, name)) == []
    both = replace(tiny, runs=[*tiny.runs, *runs])
    assert {run.scale for run in of_exhibits(both).runs} == {"laptop", "overnight"}


def test_runs_that_their_experiment_once_had_are_passed_over(whole_reference, reference):
    """Such as steps that were predicted for fitted devices."""
    ids = {run.id for run in reference.runs}
    left = [run for run in whole_reference.runs if run.id not in ids]
    assert {"amoebanet-d-on-h200", "transformer-layers"} <= {run.group for run in left}


def test_how_many_blocks_a_clock_reads_is_no_setting(reference):
    def with_steps(run: Run) -> Run:
        return replace(run, spec=run.spec.model_copy(update={"steps": run.spec.steps + 1}))

    runs = [run for run in reference.by_experiment["table2"] if run.fidelity == "measured"]
    assert len(of_exhibits(changed_runs(replace(reference, runs=runs), with_steps)).runs) == len(
        runs
    )
