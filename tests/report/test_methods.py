"""The methods side by side: what stands where nothing was timed, and what a rank keeps."""

from math import isnan

import pytest
from recorded import fill_with

from experiments.methods import report as methods
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import load
from repro.harness.schema import round_record
from repro.harness.spec import SCALES, RunSpec
from repro.report.style import PARTS, styled


def made(run: RunSpec, _number: int) -> Measured | None:
    """What is recorded of a run: nothing of replicas of pipelines, which need four devices."""
    if run.D > 1 and run.K > 1 and run.zero is None:
        return None
    values = {
        "step_s": [1.0],
        "loss": [2.0, 1.5],
        "bubble_idle_over_total": [0.25],
        "bubble_idle_over_work": [1 / 3],
        "breakdown": dict.fromkeys(PARTS, 0.1),
        "peak_bytes": [100 * 2**20],
        "balance": [1] * run.K,
        "setup_s": 0.1,
        "unit": "examples/s",
        "labels": {},
    }
    return Measured(round_record(values), None)


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_compares_all_methods_with_one_device(scale):
    plan = catalog.find("methods").build(scale)
    assert len([run for run in plan.groups[0].runs if run.checkpoint == "never"]) == 13
    for group in plan.groups[:3]:
        assert any(run.devices == 1 and run.checkpoint == "never" for run in group.runs)


def test_what_was_not_run_or_not_timed_says_so_and_has_no_number(tmp_path):
    fill_with(tmp_path, catalog.find("methods").build("smoke"), made)
    results = load(tmp_path)
    tables = {table.name: table for table in methods.tables(results)}
    rows = {row["method"]: row for row in tables["methods"].shown.to_dict("records")}
    absent, untimed = rows["gpipe-x-data"], rows["gpipe-x-tensor"]
    over = "throughput over one device, measured"
    assert (absent[over], absent["loss measured"]) == ("not run", "-")
    # Processes that share cores have memory and a loss, but no time.
    assert (untimed[over], untimed["idle/total measured"]) == ("not timed", "-")
    assert (untimed["peak MiB measured"], untimed["loss measured"]) == ("100.0", "1.50000")
    (run,) = [run for run in results.runs if run.spec.tensor_parallel and run.K == 2]
    assert all(map(isnan, (run.step_s, run.throughput, run.bubble_idle_over_total)))
    assert run.rounds[0].breakdown == {}
    with styled():
        drawn = {name for name, figure, _ in methods.figures(results, []) if figure}
    assert {"glance", "loss"} <= drawn


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [
        (("naive", 8, 16), 1),
        (("gpipe", 8, 16), 16),
        (("1f1b", 8, 16), 8),
        (("zb-h1", 8, 16), 8),
        # With K=2 and M=4 rank 0 is 5 forwards of half its layers ahead of its first backward.
        (("interleaved-1f1b", 4, 4, "never", 2), 2.5),
    ],
)
def test_micro_batches_kept(schedule, kept):
    name, K, M, *more = schedule
    assert methods.kept_micro_batches(make_schedule(name, K, M, *(more or ["never"]))) == kept
