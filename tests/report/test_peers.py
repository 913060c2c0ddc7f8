"""The tables beside other libraries, from recorded rounds with known numbers."""

from pathlib import Path
from typing import Any

import pytest
from recorded import MACHINE

from experiments.peers import report as peers
from repro.harness.job import Measured
from repro.harness.record import Folder
from repro.harness.results import Results, load
from repro.harness.schema import RoundRecord, round_record
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report.table import Table
from repro.report.tables import all_tables

WHEN = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
TIMED = {
    "model": "timed",
    "model_args": {"L": 8},
    "K": 8,
    "M": 4,
    "N": 4,
    "trace": False,
    "fidelity": "emulated",
}
CHECKED = {"model": "probe", "K": 2, "M": 4, "N": 16, "trace": False, "task": "check"}
RUNS = [  # seconds of a step in each of five rounds: ours, a peer, and ours again
    (RunSpec(**TIMED), (1.0, 1.1, 1.2, 1.0, 1.1)),
    (RunSpec(**TIMED, library="torch"), (1.25, 1.375, 1.5, 1.25, 1.375)),
    (RunSpec(**TIMED, seed=1), (1.02, 1.08, 1.21, 0.99, 1.1)),
]
FOUND = {
    "gradients": {"verdict": "ok", "value": 1e-8, "evidence": "near"},
    "dropout": {"verdict": "refused", "value": None, "evidence": "RuntimeError: no."},
}


def line(steps: list[float], **more: Any) -> RoundRecord:
    unknown = {
        "bubble_idle_over_total": [None],
        "bubble_idle_over_work": [None],
        "breakdown": {},
        "peak_bytes": None,
    }
    rest = {"balance": [1] * 8, "setup_s": 0.1, "unit": "examples/s", "labels": {}}
    return round_record({"step_s": steps, "loss": steps, **unknown, **rest, **more})


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path: Path = tmp_path_factory.mktemp("peers")
    checked, skipped = RunSpec(**CHECKED, library="torch"), RunSpec(**CHECKED, library="torchgpipe")
    specs = [*(spec for spec, _ in RUNS), checked, skipped]
    group = Group(name="all", runs=tuple(specs))
    plan = Experiment(name="peers", title="", question="", groups=(group,))
    folder = Folder.of(path, MACHINE, "laptop", "peers")
    ids = [spec.run_id(1, MACHINE.identity) for spec in specs]
    listed = {run: ("all", spec) for run, spec in zip(ids, specs, strict=True)}
    folder.write_specs(plan, listed, MACHINE.identity, accumulate=False)
    for number in range(5):
        measured = {
            run: Measured(line([steps[number]])) for run, (_, steps) in zip(ids, RUNS, strict=False)
        }
        if number == 0:
            measured[ids[-2]] = Measured(line([], checks=FOUND))
        folder.commit_round("all", measured, MACHINE, WHEN)
    for run in ids[:-1]:
        folder.set_status(run, "done", rounds=5)
    folder.set_status(ids[-1], "skipped", "not installed")
    return load(path)


@pytest.fixture(scope="module")
def found(compared: Results) -> dict[str, Table]:
    return {table.name: table for table in peers.tables(compared)}


def test_each_kind_has_its_table(found: dict[str, Table]):
    assert list(found) == ["peers_checks", "peers_speed_emulated", "peers_noise"]
    assert {table.experiment for table in found.values()} == {"peers"}


def test_verdicts_stand_with_their_numbers_and_their_evidence(found: dict[str, Table]):
    table = found["peers_checks"]
    first, second, third = table.shown.to_dict("records")
    assert (first["check"], first["verdict"]) == ("gradients", "ok")
    assert first["greatest difference"] == "1.0e-08"
    assert (second["check"], second["evidence"]) == ("dropout", "RuntimeError: no.")
    assert (third["library"], third["verdict"]) == ("torchgpipe 0.0.7", "skipped(not installed)")


def test_a_ratio_is_split_into_the_schedules_and_the_runtimes_part(found: dict[str, Table]):
    assert found["peers_speed_emulated"].data is not None
    (one,) = found["peers_speed_emulated"].data.to_dict("records")
    assert one["ratio"] == pytest.approx(1.25)
    assert one["ideal"] == pytest.approx(44 / 37)  # (M+K-1) 4 over (M+K-1) + 3 M + 2 (K-1)
    assert one["runtime"] == pytest.approx(1.25 * 37 / 44)
    (shown,) = found["peers_speed_emulated"].shown.to_dict("records")
    assert (shown["throughput, ours over peer"], shown["verdict"]) == (
        "1.25 [1.25, 1.25]",
        "faster",
    )


def test_the_same_point_twice_says_whether_one_is_inside(found: dict[str, Table]):
    (one,) = found["peers_noise"].shown.to_dict("records")
    assert (one["K"], one["M"], one["1 is inside"]) == ("8", "4", "yes")


def test_results_without_peers_have_no_such_table(nothing: Results, mixed: Results):
    assert peers.tables(nothing) == peers.tables(mixed) == []


def test_the_report_has_them_and_other_tables_leave_peers_out(compared: Results):
    tables = {table.name: table for table in all_tables(compared)}
    assert {"peers_checks", "peers_speed_emulated", "peers_noise"} <= tables.keys()
    assert len(tables["peers_points_emulated"].shown) == 2
    assert len(tables["runs"].shown) == 5
