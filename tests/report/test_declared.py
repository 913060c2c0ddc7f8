"""What an experiment declares in its own folder is on the page, and nothing else is imported."""

import sys

import pytest
from recorded import experiment, fill

import experiments
from repro.harness.results import load
from repro.report import declared
from repro.report.declared import HOME
from repro.report.style import styled
from repro.report.tables import all_tables

REPORT = """
from repro.report.compare import rows_of
from repro.report.grid import Column, declared, plain


def tables(results):
    runs = rows_of(results, experiment="toy")
    column = Column("runs", lambda runs: plain(len(runs)))
    return [declared("toy_runs", "Toy", "", [runs], [column], "toy")]
"""


def test_a_folder_is_enough_for_a_table(tmp_path, monkeypatch):
    (tmp_path / "home/toy").mkdir(parents=True)
    (tmp_path / "home/toy/report.py").write_text(REPORT)
    monkeypatch.setattr(declared, "HOME", tmp_path / "home")
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path / "home")])
    fill(tmp_path / "results", experiment(name="toy"))
    try:
        made = {table.name: table for table in all_tables(load(tmp_path / "results"))}
    finally:
        for name in [name for name in sys.modules if name.startswith("experiments.toy")]:
            del sys.modules[name]
    assert made["toy_runs"].shown["runs"].tolist() == ["6"]
    assert "toy_points" not in made


@pytest.mark.parametrize("name", ["", "mine", "sweep", "..", "table2.why", "table2/../table1"])
def test_a_recorded_name_without_a_report_of_its_own_imports_nothing(name):
    assert declared.report_of(name) is None


@pytest.mark.parametrize("name", sorted(path.parent.name for path in HOME.glob("*/report.py")))
def test_without_runs_an_experiment_has_neither_tables_nor_figures(nothing, name):
    report = declared.report_of(name)
    assert report is not None
    assert report.tables(nothing) == []
    figures = getattr(report, "figures", lambda _results, _rows: ())
    with styled():
        assert [figure for _, figure, _ in figures(nothing, []) if figure] == []


def test_reports_are_found_by_name():
    assert getattr(declared.report_of("table2"), "__name__", "") == "experiments.table2.report"
