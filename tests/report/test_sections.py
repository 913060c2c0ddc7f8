"""What each experiment shows on the page, and what an experiment of one's own needs for it."""

import sys
from dataclasses import replace

import pytest
from recorded import experiment, fill

import experiments
from repro.harness.results import load, on_a_busy_machine
from repro.report import declared
from repro.report.declared import report_of
from repro.report.sections import sections_of
from repro.report.tables import all_tables


def test_a_missing_training_is_named_by_its_arm_and_seed(reference):
    runs = [run for run in reference.by_experiment["table5"] if run.spec.seed in (0, 100)]
    planned = [replace(run, status="planned") for run in runs if run.scale == "overnight"]
    (section,) = sections_of(replace(reference, runs=planned), [], [], {}, {})
    arm = "translation, equal updates, N=8: planned: "
    tuning = [f"seed 100 to tune the rate {rate}" for rate in (0.004, 0.008, 0.016)]
    assert f"{arm}{', '.join([*tuning, 'seed 0'])}" in section["missing"]


def test_runs_that_were_timed_on_a_busy_machine_are_counted(reference):
    said = "took more than 10% of the usable cores: 1 of 2 timed runs"
    assert said in on_a_busy_machine(reference.by_experiment["breakdown"])
    assert on_a_busy_machine(reference.by_experiment["consistency"]) == "", "none is timed"


RUNS_ALONE = """
import pandas as pd

from repro.harness.about import read_about
from repro.harness.frame import runs_frame
from repro.report.claim import Claim, number
from repro.report.framed import framed


def tables(results):
    frame = runs_frame(results, "toy").groupby("K", as_index=False).size()
    return [framed("toy_runs", frame, read_about(__file__))]


def claims(results):
    runs = runs_frame(results, "toy")
    yield Claim("Section 9", "runs", [number(len(runs))], "counted", paper=6)
"""
ABOUT = """# Toy

What?

## toy_runs: Runs by K

All of them.
"""


def test_a_folder_is_enough_for_a_table_and_a_claim(tmp_path, monkeypatch):
    folder = tmp_path / "home/toy"
    folder.mkdir(parents=True)
    (folder / "report.py").write_text(RUNS_ALONE)
    (folder / "about.md").write_text(ABOUT)
    monkeypatch.setattr(declared, "HOME", tmp_path / "home")
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path / "home")])
    fill(tmp_path / "results", experiment(name="toy"))
    try:
        made = {table.name: table for table in all_tables(load(tmp_path / "results"))}
    finally:
        for name in [name for name in sys.modules if name.startswith("experiments.toy")]:
            del sys.modules[name]
    assert made["toy_runs"].shown["size"].tolist() == ["2"] * 3
    assert made["toy_runs"].title == "Runs by K"
    assert "toy_points" not in made
    line = made["verdicts"].shown.iloc[-1]
    assert line.to_list()[:6] == ["Section 9", "runs", "6", "6", "counted", "reproduced"]


@pytest.mark.parametrize("name", ["", "mine", "sweep", "..", "table2.why", "table2/../table1"])
def test_a_recorded_name_without_a_report_of_its_own_imports_nothing(name):
    assert report_of(name) is None
