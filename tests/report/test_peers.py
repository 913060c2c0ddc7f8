"""The tables beside other libraries, from recorded rounds with known numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import MACHINE

from experiments.peers import report as peers
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.record import Folder
from repro.harness.results import Results, load
from repro.harness.schema import RoundRecord, round_record
from repro.harness.spec import Experiment, Group, RunSpec
from repro.harness.vary import baseline
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
OURS = (1.0, 1.1, 1.2, 1.0, 1.1)  # seconds of a step in each of five rounds
AGAIN = (1.02, 1.08, 1.21, 0.99, 1.1)  # the same point as another run
NOISY = (0.7, 1.5, 1.2, 0.75, 1.4)
SLOWER = tuple(1.4 * step for step in OURS)
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


def recorded(
    path: Path, peer_over_ours: float = 1.25, again: tuple[float, ...] = AGAIN, rounds: int = 5
) -> Results:
    """Results of a peer whose steps take so many times as long as ours, ours again, two checks."""
    timed = [
        (RunSpec(**TIMED), OURS),
        (RunSpec(**TIMED, library="torch"), [peer_over_ours * step for step in OURS]),
    ]
    if again:
        timed.append((RunSpec(**TIMED, seed=1), again))
    checked, skipped = RunSpec(**CHECKED, library="torch"), RunSpec(**CHECKED, library="torchgpipe")
    specs = [*(spec for spec, _ in timed), checked, skipped]
    group = Group(name="all", runs=tuple(specs))
    plan = Experiment(name="peers", title="", question="", groups=(group,))
    folder = Folder.of(path, MACHINE, "laptop", "peers")
    ids = [spec.run_id(1, MACHINE.identity) for spec in specs]
    listed = {run: ("all", spec) for run, spec in zip(ids, specs, strict=True)}
    folder.write_specs(plan, listed, MACHINE.identity, accumulate=False)
    for number in range(rounds):
        measured = {
            run: Measured(line([steps[number]]))
            for run, (_, steps) in zip(ids, timed, strict=False)
        }
        if number == 0:
            measured[ids[-2]] = Measured(line([], checks=FOUND))
        folder.commit_round("all", measured, MACHINE, WHEN)
    for run in ids[:-1]:
        folder.set_status(run, "done", rounds=len(folder.rounds(run)))
    folder.set_status(ids[-1], "skipped", "not installed")
    return load(path)


def speed_of(results: Results) -> dict[str, Any]:
    """The one line of the table of emulated steps, as it is shown."""
    (table,) = (t for t in peers.tables(results) if t.name == "peers_speed_emulated")
    (shown,) = table.shown.to_dict("records")
    return shown


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("peers"))


@pytest.fixture(scope="module")
def found(compared: Results) -> dict[str, Table]:
    return {table.name: table for table in peers.tables(compared)}


def test_each_kind_has_its_table(found: dict[str, Table]):
    assert list(found) == ["peers_checks", "peers_speed_emulated"]
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


def test_the_noise_of_ours_against_ours_stands_in_the_row(found: dict[str, Table]):
    (one,) = found["peers_speed_emulated"].data.to_dict("records")
    ratios = sorted(ours / again for ours, again in zip(OURS, AGAIN, strict=True))
    assert one["noise"] == pytest.approx(ratios[2])
    assert ratios[0] <= one["noise_low"] < 1 < one["noise_high"] <= ratios[-1]


@pytest.mark.parametrize(
    ("peer_over_ours", "again", "verdict"),
    [
        (1.25, AGAIN, "faster"),
        (0.8, AGAIN, "slower"),
        (1.25, NOISY, "not distinguishable"),
        (1.25, SLOWER, "not distinguishable"),  # whichever of both runs is divided
        (0.8, NOISY, "not distinguishable"),
        (1.0, AGAIN, "not distinguishable"),
        (1.25, (), "no A/A interval"),
    ],
)
def test_faster_needs_an_interval_that_is_clear_of_the_noise(
    tmp_path, peer_over_ours, again, verdict
):
    shown = speed_of(recorded(tmp_path, peer_over_ours, again))
    assert shown["verdict"] == verdict
    # The interval of the ratio alone never holds 1 but where both are equally fast.
    assert shown["throughput, ours over peer"].endswith("~") == (peer_over_ours == 1.0)


def test_the_widest_noise_of_a_model_counts(tmp_path):
    results = recorded(tmp_path)
    noisy = recorded(tmp_path / "noisy", again=NOISY)
    # A second repetition, with another seed, whose steps are the noisy ones.
    (repeated,) = (run for run in noisy.runs if run.spec.seed == 1)
    spec = repeated.spec.model_copy(update={"seed": 2})
    both = replace(results, runs=[*results.runs, replace(repeated, spec=spec)])
    assert speed_of(results)["verdict"] == "faster"
    assert speed_of(both)["verdict"] == "not distinguishable"


def test_few_rounds_earn_no_verdict(tmp_path):
    shown = speed_of(recorded(tmp_path, rounds=4))
    assert (shown["verdict"], shown["A/A"]) == ("too few rounds", "-")


def test_a_goal_is_met_or_missed(tmp_path):
    met, missed = recorded(tmp_path / "met", 1.3), recorded(tmp_path / "missed", 1.2)
    assert peers.GOALS[8, 4] == 1.25
    assert speed_of(met)["goal"] == "at least 1.25: met"
    assert speed_of(missed)["goal"] == "at least 1.25: missed by 0.05"


@pytest.mark.parametrize("scale", ["laptop", "node", "paper"])
def test_each_goal_has_its_runs(scale):
    groups = {group.name: group.runs for group in catalog.find("peers").build(scale).groups}
    of_gpipe = [run for run in groups["known-durations"] if run.schedule == "gpipe"]
    assert set(peers.GOALS) == {(run.K, run.M) for run in of_gpipe}


@pytest.mark.parametrize("scale", ["smoke", "laptop", "node", "paper"])
def test_each_schedule_of_a_peer_has_ours_beside_it(scale):
    groups = catalog.find("peers").build(scale).groups
    timed = [run for group in groups for run in group.runs if run.task == "train"]
    libraries = {"repro", "torch", "torch-1f1b", "torch-interleaved", "deepspeed"}
    assert {run.library for run in timed} == libraries
    assert {(run.library, run.checkpoint) for run in timed if run.fidelity == "measured"} == {
        (library, checkpoint) for library in libraries for checkpoint in ("always", "never")
    }
    for peer in timed:
        ours = {str(n): run for n, run in enumerate(timed) if run.library == "repro"}
        assert baseline(peer, ours, library="repro") is not None


def test_results_without_peers_have_no_such_table(nothing: Results, mixed: Results):
    assert peers.tables(nothing) == peers.tables(mixed) == []


def test_the_report_has_them_and_other_tables_leave_peers_out(compared: Results):
    tables = {table.name: table for table in all_tables(compared)}
    assert {"peers_checks", "peers_speed_emulated"} <= tables.keys()
    assert len(tables["runs"].shown) == 5
