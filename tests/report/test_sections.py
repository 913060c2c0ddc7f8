"""What each experiment shows on the page."""

from dataclasses import replace

import pytest

from repro.report.declared import report_of
from repro.report.sections import section_of


def test_a_missing_training_is_named_by_its_arm(reference, tmp_path):
    runs = [run for run in reference.by_experiment["table5"] if run.spec.seed in (0, 100)]
    planned = [replace(run, status="planned") for run in runs if run.scale == "overnight"]
    section = section_of(replace(reference, runs=planned), "table5", tmp_path)
    (line,) = section["missing"]
    assert line.startswith("translation: planned: equal updates, N=8, ")
    assert line.count("equal updates, N=8, ") == 1


@pytest.mark.parametrize("name", ["", "mine", "sweep", "..", "table2.why", "table2/../table1"])
def test_a_recorded_name_without_a_report_of_its_own_imports_nothing(name):
    assert report_of(name) is None
