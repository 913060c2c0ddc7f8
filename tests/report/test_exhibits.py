"""Every exhibit from results that are not whole: what `plots/reference` cannot hold."""

import re
from dataclasses import replace

import pytest
from recorded import at_scale, changed_runs

from repro.harness.results import Results
from repro.report import figures
from repro.report.compare import of_paper
from repro.report.sections import sections_of
from repro.report.tables import all_tables
from repro.report.verdicts import claims_of

# Which runs are done.
HALF = {
    "nothing": lambda number, run: False,
    "every second run": lambda number, run: number % 2,
    "the other runs": lambda number, run: number % 2 == 0,
    "no baseline": lambda number, run: (run.K, run.M) not in {(1, 1), (2, 1)},
    "simulated": lambda number, run: run.fidelity == "simulated",
    "not simulated": lambda number, run: run.fidelity != "simulated",
    "the first seed": lambda number, run: run.spec.seed == 0,
}


def is_made(results: Results) -> None:
    tables = all_tables(results)
    for table in tables:
        assert len(table.shown)
        assert table.csv()
        assert "nan" not in table.markdown().lower().split(), table.name
    assert sections_of(results, tables, [], {}, claims_of(results))


@pytest.mark.parametrize("half", HALF)
def test_a_report_is_made_of_half_recorded_results(reference, half):
    runs = [
        run if HALF[half](number, run) else replace(run, status="planned", rounds=())
        for number, run in enumerate(reference.runs)
    ]
    is_made(replace(reference, runs=runs))


@pytest.mark.parametrize(("rounds", "status"), [(2, "done"), (1, "failed(oom)")])
def test_a_report_is_made_of_few_rounds(reference, rounds, status):
    """Two of each run, which are too few for an interval; one, and then a failure."""
    recorded = [run for run in reference.runs if run.rounds]
    runs = [replace(run, rounds=run.rounds[:rounds], status=status) for run in recorded]
    is_made(replace(reference, runs=runs))


def test_nothing_of_the_paper_stands_beside_a_tiny_scale(tmp_path, reference, monkeypatch):
    """In no table, no legend and no caption."""
    labels: dict[str, str] = {}

    def save(figure, stem, _title):
        in_axes = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        texts = [text for legend in (*figure.legends, *in_axes) for text in legend.get_texts()]
        labels[stem.name] = " ".join(text.get_text() for text in texts)

    scales = {"overnight": "gpu-dry"}  # apart, as they have runs of one arm and seed
    tiny = changed_runs(reference, lambda run: at_scale(run, scales.get(run.scale, "smoke")))
    for table in all_tables(tiny):
        if table.experiment in of_paper(reference):
            assert not re.search(r"quoted|NeurIPS|\bgap\b", table.markdown()), table.name
    monkeypatch.setattr(figures, "save", save)
    for one in figures.draw_all(tiny, tmp_path):
        assert "quoted" not in f"{labels[one.stem.name]} {one.caption}".lower(), one.stem.name
