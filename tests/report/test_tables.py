"""Tables of results: fidelities stay apart, the paper's numbers leave, every run is told apart."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
from recorded import at_scale, changed_runs

from repro.harness.frame import SETTINGS
from repro.report import tables
from repro.report.compare import beside_paper, without_tiny

ROOT = Path(__file__).parents[2]


def test_points_have_their_ratio_inside_rounds(results):
    lines = tables.points(results, "table2").shown.set_index(["K", "M"])
    assert lines.loc[("2", "4"), "speedup over K=1"] == "1.60 [1.60, 1.60]"
    assert lines.loc[("2", "1"), "speedup over K=1"].endswith("] ~")
    assert lines.loc[("1", "4"), "speedup over K=1"] == "1 (baseline)"
    assert lines.loc[("4", "4"), "status"] == "skipped(needs 4 devices)"
    assert lines.loc[("4", "4"), ["step (ms)", "throughput", "idle/total"]].tolist() == ["-"] * 3


def test_the_reference_has_no_two_runs_that_differ_by_their_hash_alone():
    """Whatever a run was asked to be stands in runs.csv, a link's speed in its labels."""
    frame = pd.read_csv(ROOT / "plots/reference/runs.csv")
    given = "machine scale experiment model K M N D schedule remat optimizer lr fidelity library"
    asked = [name for name in frame.columns if name.startswith("model_args.")]
    asked += [*given.split(), "cut_by", "labels.link", "training", *SETTINGS]
    assert len(frame.drop_duplicates(asked)) == len(frame)


def test_where_there_is_more_than_smoke_only_that_is_held_against_the_paper(results, nothing):
    tiny = changed_runs(results, lambda run: at_scale(run, "smoke"))
    both = replace(results, runs=[*results.runs, *tiny.runs])
    assert {run.scale for run in without_tiny(both).runs} == {"laptop"}
    assert {run.scale for run in without_tiny(tiny).runs} == {"smoke"}
    compared = [beside_paper(some, "table2") for some in (results, both, tiny, nothing)]
    assert compared == [True, True, False, False]
    made = {table.name: table for table in tables.all_tables(both)}
    assert set(made["runs"].shown["scale"]) == {"laptop", "smoke"}
