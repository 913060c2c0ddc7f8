"""Tables of results: one line a run, over plain training or one device."""

from pathlib import Path

import pandas as pd

from repro.harness.frame import SETTINGS
from repro.harness.results import load
from repro.report import tables
from repro.report.curves import OVER_ONE

ROOT = Path(__file__).parents[2]


def test_points_have_a_line_for_each_run_over_plain_training(own_sweep):
    table = tables.points(load(own_sweep), "sweep")
    expected = {
        "method": ["single", "single", "gpipe"],
        "K": ["1", "1", "2"],
        "M": ["1", "2", "2"],
        "differs in": ["recompute never", "recompute always", "recompute always"],
        "throughput": ["80.0 examples/s", "80.0 examples/s", "160 examples/s"],
        "over plain training": ["1 (baseline)", "1.00", "2.00"],
    }
    assert table.shown.to_dict("list") == expected, "memory is the same in all"
    assert {"model", "N", "recompute", "peak MiB", "machine"} <= {*table.data}


def test_points_are_over_one_device_inside_rounds_and_say_why_a_run_is_missing(results):
    lines = tables.points(results, "table2", OVER_ONE).shown.set_index(["K", "M"])
    assert lines.loc[("2", "4"), OVER_ONE] == "1.60 (1.60 to 1.60)"
    assert lines.loc[("2", "1"), OVER_ONE].endswith(")")
    assert lines.loc[("1", "4"), OVER_ONE] == "1 (baseline)"
    assert lines.loc[("4", "4"), "throughput"] == "skipped(needs 4 devices)"
    assert lines.loc[("4", "4"), "peak MiB"] == "-"


def test_the_reference_has_no_two_runs_that_differ_by_their_hash_alone():
    """All settings of a run are columns of runs.csv; a link's speed is one of its labels."""
    frame = pd.read_csv(ROOT / "plots/reference/runs.csv")
    given = (
        "machine scale experiment model K M N D schedule recompute optimizer lr fidelity library"
    )
    asked = [name for name in frame.columns if name.startswith("model_args.")]
    asked += [*given.split(), "cut_by", "labels.link", "training", *SETTINGS]
    assert len(frame.drop_duplicates(asked)) == len(frame)
