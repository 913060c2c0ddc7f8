"""Tables of results: fidelities stay apart, the paper's numbers leave, every run is told apart."""

import io
import re
from dataclasses import replace
from math import isnan
from pathlib import Path

import pandas as pd
import pytest
from recorded import at_scale, changed_runs, fill_with, record, timeline

from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.frame import SETTINGS
from repro.harness.job import Measured
from repro.harness.results import Results, Run, load
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import tables
from repro.report.compare import beside_paper, settings, without_tiny
from repro.report.table import csv_text

ROOT = Path(__file__).parents[2]


def test_points_have_their_ratio_inside_rounds(results):
    lines = tables.points(results, "table2").shown.set_index(["K", "M"])
    assert lines.loc[("2", "4"), "speedup over K=1"] == "1.60 [1.60, 1.60]"
    assert lines.loc[("2", "1"), "speedup over K=1"].endswith("] ~")
    assert lines.loc[("1", "4"), "speedup over K=1"] == "1 (baseline)"
    assert lines.loc[("4", "4"), "status"] == "skipped(needs 4 devices)"
    assert lines.loc[("2", "4"), "theory, idle/total"] == "20.0%"
    assert lines.loc[("4", "4"), ["step (ms)", "throughput", "idle/total"]].tolist() == ["-"] * 3


def test_a_fidelity_never_shares_a_table_of_points(mixed):
    measured, emulated = (
        tables.points(mixed, "table2", fidelity) for fidelity in ("measured", "emulated")
    )
    assert set(measured.shown["fidelity"]) == {"measured"}
    assert emulated.name == "table2_points_emulated"
    assert len(measured.shown) == len(emulated.shown) + 2


def test_settings_differ_in_more_than_k_and_m(results):
    def titles(**fields: object) -> set[str]:
        def change(run: Run) -> Run:
            spec = run.spec.model_copy(update=fields)
            return replace(run, spec=spec) if run.M == 4 else run

        runs = changed_runs(results, change)
        return {setting.title for setting in settings(runs, runs.runs)}

    usual = "Transformer (laptop, L=4, N=32, remat always, {}attention plain)"
    assert titles() == {usual.format("")}
    assert titles(lr=0.5) == {usual.format(f"lr {lr}, ") for lr in (0.01, 0.5)}


def widths(results: Path) -> Results:
    """A sweep of three widths, two rounds each; its three runs differ by their hash alone."""

    def made(spec: RunSpec, number: int) -> Measured:
        walked = timeline(spec.K, spec.M, forward=0.01 * (number + 1))
        schedule = make_schedule("gpipe", spec.K, spec.M)
        extra = {"loss": [1.0], "peak_bytes": [2**30, 2**29], "labels": {"data": "made up"}}
        return Measured(record(walked, schedule, **extra), walked)

    sizes = [{"width": width, "act": "gelu", "sizes": [1, 2]} for width in (64, 256, 512)]
    runs = tuple(RunSpec(model="import:mine:mlp", model_args=size, K=2, M=4, N=8) for size in sizes)
    plan = Experiment(name="sweep", title="", question="", groups=(Group(name="mlp", runs=runs),))
    fill_with(results, plan, made, rounds=2)
    return load(results)


def test_runs_csv_holds_numbers_that_pandas_reads(tmp_path):
    text = tables.runs(widths(tmp_path)).csv()
    frame = pd.read_csv(io.StringIO(text))
    assert frame["model_args.width"].tolist() == [64, 256, 512]
    assert frame["differs_in"].tolist() == ["width=64", "width=256", "width=512"]
    assert set(frame["labels.data"]) == {"made up"}
    assert frame["trace"].tolist() == [True] * 3
    assert set(frame["peak_gib_per_stage"]) == {"1.0;0.5"}
    assert (set(frame["balance"]), set(frame["model_args.sizes"])) == ({"1;1"}, {"1;2"})
    assert all(isnan(value) for value in frame["speedup_vs_k1_ci_low"]), "there is no K=1"
    assert not re.search(r"[\[({]|None|nan", text), "no cell is a Python value"


def test_rounds_csv_has_a_line_for_each_run_and_round(tmp_path):
    frame = pd.read_csv(io.StringIO(csv_text(tables.rounds(widths(tmp_path)).to_dict("list"))))
    assert frame.groupby("run")["round"].apply(list).tolist() == [["mlp-0001", "mlp-0002"]] * 3
    assert frame["throughput"].tolist() == pytest.approx([8 / step for step in frame["step_s"]])
    assert {"K", "M", "N", "fidelity", "commit", "breakdown.recompute"} <= set(frame.columns)


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


def test_both_machines_and_commits_stand_below_a_table(results):
    def on(machine: str, commit: str) -> list[Run]:
        def moved(run: Run) -> Run:
            rounds = tuple(replace(round_, commit=commit) for round_ in run.rounds)
            return replace(run, place=run.place._replace(machine=machine), rounds=rounds)

        return [moved(run) for run in results.runs]

    two = replace(results, runs=[*on("here-2c", "aaaaaaaaaa"), *on("other-2c", "bbbbbbbbbb")])
    sentence = (
        "Recorded with commit aaaaaaaaaa on here-2c (measured); commit bbbbbbbbbb on other-2c "
        "(measured)."
    )
    made = {table.name: table for table in tables.all_tables(two)}
    assert made["table2"].caption.endswith(sentence)
    lines = made["table2"].shown.agg(" ".join, axis=1)
    assert lines.str.contains("here-2c").sum() == lines.str.contains("other-2c").sum() > 0
    assert all("Recorded with" not in table.caption for table in tables.all_tables(results))
