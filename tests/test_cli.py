"""The command from end to end, on a model of known duration and in a results folder of its own."""

import errno
import json
import os
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from repro.cli import doctor
from repro.cli.main import VERBS, main
from repro.harness import machine, runner
from repro.harness.frame import all_runs
from repro.harness.job import Outcome
from repro.harness.results import load

sys.path.insert(0, str(Path(__file__).parent / "harness"))
from crew import Crew  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups
TIMED = [
    "--model",
    "timed",
    "--model-args",
    "L=2",
    "forward_s=0.01",
    "backward_s=0.02",
    "--batch",
    "8",
]
HEADS = ["heads=2", "d=16", "H=32", "L=2", "V=64", "T=8"]
REFERENCE = Path(__file__).parents[1] / "results/reference"
QUICK = [
    *TIMED,
    "--warmup",
    "0",
    "--steps",
    "1",
    "--rounds",
    "2",
    "--wandb",
    "disabled",
    "--scale",
    "smoke",
]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed layers wait, so two stages run side by side on one core as well."""
    monkeypatch.setattr(machine, "cores", lambda: 2)


def test_a_sweep_from_end_to_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    sweep = ["run", "sweep", "--K", "1", "2", "--M", "4", "--results", str(tmp_path), *QUICK]
    sweep[sweep.index("L=2")] = "L=3"
    assert main(sweep) == 0
    output = capfd.readouterr().out
    for words in (
        "2 runs at scale smoke",
        "round 2 of 2",
        "over K=1",
        "stage 1 |",
        "repro report",
    ):
        assert words in output
    rows = all_runs(load(tmp_path)).set_index("K")
    assert rows["status"].tolist() == ["done", "done"]
    assert 1.1 < rows.loc[2, "speedup_vs_k1"] < 2  # ideal with stages of 1 and 2 layers: 1.3
    assert set(rows["fidelity"]) == {"emulated"}

    # run_all.sh has a report written in any case
    assert main([*sweep, "--plots", str(tmp_path / "plots")]) == 0
    output = capfd.readouterr().out
    assert "nothing left to measure" in output
    assert output.splitlines()[-1] == f"results: {tmp_path}"
    assert all_runs(load(tmp_path))["rounds"].tolist() == [2, 2]
    assert not list(tmp_path.rglob("logs/*"))


@pytest.mark.parametrize("made", [False, True])
def test_a_report_of_nothing_is_refused_in_one_line(
    made: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    results, plots = tmp_path / "results", tmp_path / "plots"
    if made:
        results.mkdir()
    assert main(["report", "--results", str(results), "--plots", str(plots)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: results = '{results}': ")
    assert "repro run" in line
    assert not plots.exists()


def test_a_recorded_run_is_replayed_with_its_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "workers", lambda *_: Crew())
    results = ["--results", str(tmp_path), *QUICK]
    assert main(["run", "sweep", "--K", "2", "--M", "4", *results]) == 0
    run = next(run.id for run in load(tmp_path).runs if run.K == 2)
    assert main(["run", "--spec", run, *results[:2], *QUICK[-4:]]) == 0
    found = all_runs(load(tmp_path))
    found = found[found["experiment"] == "replay"]
    assert sorted(zip(found["K"], found["M"], strict=True)) == [(1, 4), (2, 1), (2, 4)]
    assert set(found["status"]) == {"done"}


def test_a_spec_from_elsewhere_runs_no_code_by_itself(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runner, "workers", lambda *_: Crew())
    path = tmp_path / "theirs.json"
    options = ["--spec", str(path), "--results", str(tmp_path / "results"), *QUICK[-4:]]
    spec = {"model": "timed", "model_args": {"L": 2}, "fidelity": "emulated", "K": 2, "M": 4}
    path.write_text(json.dumps({**spec, "N": 8}))
    assert main(["run", *options]) == 0
    assert load(tmp_path / "results").listings["replay"].commands == ["--spec theirs.json"]

    ran = tmp_path / "ran"
    code = {"model": "import:os:mkdir", "model_args": {"path": str(ran)}, "K": 1, "M": 1, "N": 1}
    path.write_text(json.dumps(code))
    capfd.readouterr()
    for words in (["plan", *options[:4], "--scale", "smoke"], ["run", *options]):
        assert main(words) == 2
        assert "imports the Python module os and calls mkdir" in capfd.readouterr().err
    assert not ran.exists()
    assert main(["run", *options, "--trust"]) == 2
    assert ran.exists()


def test_a_run_that_fails_gives_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    crew = Crew(fail={(2, 4): Outcome("failed", "stage 1: RuntimeError: no")})
    monkeypatch.setattr(runner, "workers", lambda *_: crew)
    sweep = ["run", "sweep", "--K", "2", "--M", "1", "4", "--results", str(tmp_path), *QUICK]
    assert main(sweep) == 1
    output = capfd.readouterr().out
    assert "failed (stage 1: RuntimeError: no)" in output
    assert "failed: timed-K2-M4-" in output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "tabel2"], ["experiment = 'tabel2'", "did you mean 'table2'", "repro list"]),
        (["rnu"], ["verb = 'rnu'", "did you mean 'run'"]),
        (
            ["run", "sweep", "--chekpoint", "never"],
            ["--chekpoint", "did you mean '--checkpoint'", "--help"],
        ),
        (["run", "sweep", "--K", "two"], ["--K", "two", "--help"]),
        (["run", "sweep", "--K", "0"], ["K = 0", "1 or more"]),
        (["run", "sweep", "--method", "gpip"], ["method='gpip'", "did you mean 'gpipe'"]),
        (
            ["run", "sweep", "--method", "tensor", "--K", "2", "--model", "amoebanet-d"],
            ["model = 'amoebanet-d' with tensor_parallel = 2", "tensor_plan", "'transformer'"],
        ),
        (
            ["run", "sweep", "--method", "tensor", "--K", "4", "--model-args", *HEADS],
            ["tensor_parallel = 4", "the 2 heads of a Block", "divisors of 2"],
        ),
        (["run", "sweep", "--M", "32"], ["M = 32", "N = 16", "1 to 16"]),
        (["run", "sweep", "--K", "9", *TIMED], ["K = 9", "L = 2", "1 to 2"]),
        (
            ["run", "sweep", "--K", "2", "--balance", "1", "2", *TIMED],
            ["balance = [1, 2]", "L = 2", "add up to 2"],
        ),
        (
            ["run", "sweep", "--model", "transformr"],
            ["model='transformr'", "amoebanet-d", "did you mean"],
        ),
        (["run", "sweep", "--model-args", "Q=3"], ["Q=3", "transformer", "heads"]),
        (["run", "table2", "--only", "K=3"], ["--only K=3", "K is 1, 2, 4, 8"]),
        (["run", "table2", "--rounds", "0"], ["rounds = 0", "1 or more"]),
        (["run", "table2", "--scale", "node"], ["scale = 'node'", "GPUs", "--scale laptop"]),
        (["run", "mine.py"], ["mine.py", "no such file"]),
        (["run", "table2", "--spec", "spec.json"], ["--spec spec.json", "table2", "drop one"]),
        (["list", "--all"], ["--all", "repro list --help"]),
    ],
)
def test_a_mistake_is_one_line_and_two(
    arguments: list[str],
    words: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_folder_that_cannot_be_written_is_one_line_and_two(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "file").write_text("")
    place = "amd-epyc-2c/laptop/breakdown"
    recorded = tmp_path / "recorded"
    shutil.copytree(REFERENCE / place, recorded / place)
    for command in (
        ["run", "sweep", *QUICK, "--results", str(tmp_path / "file" / "x")],
        ["report", "--results", str(recorded), "--plots", str(tmp_path / "file" / "plots")],
    ):
        assert main(command) == 2
        error = capfd.readouterr().err
        assert error.startswith(f"error: {tmp_path / 'file'}")
        assert error.count("\n") == 1
        assert "choose another folder with --results" in error


def test_a_full_disk_is_one_line_that_names_the_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["run", "sweep", "--results", str(tmp_path), *QUICK]) == 2
    error = capfd.readouterr().err
    assert "journal.jsonl: No space left on device; free some space" in error
    assert error.count("\n") == 1


def test_a_gpu_that_torch_cannot_use_is_loud(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        doctor, "the_driver", lambda: doctor.Driver(("NVIDIA H200",), "580.82", "13.0")
    )
    monkeypatch.setattr(doctor, "the_torch", doctor.Torch)
    for scale in ([], ["--scale", "smoke"]):
        assert main(["plan", "table2", "--results", str(tmp_path), *scale]) == 0
        assert "WARNING: 1 x NVIDIA H200 here, but torch cannot use a GPU" in capfd.readouterr().err


def test_scale_paper_says_what_it_takes_and_asks(tmp_path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H200",) * 8)
    assert main(["run", "table2", "--scale", "paper", "--results", str(tmp_path)]) == 2
    error = capfd.readouterr().err
    assert "8 GPUs (8.0 GPU-hours)" in error
    assert "add --yes" in error


def test_list_has_the_paper_s_numbering_needs_and_minutes(capfd: pytest.CaptureFixture[str]):
    assert main(["list"]) == 0
    output = capfd.readouterr().out
    for words in ("NeurIPS", "v5", "table2", "Table 2", "7'", "8 devices", "sweep"):
        assert words in output


def test_plan_counts_estimates_and_names_what_is_skipped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert (
        main(
            ["plan", "table2", "--scale", "laptop", "--only", "K=2,M=4", "--results", str(tmp_path)]
        )
        == 0
    )
    output = capfd.readouterr().out
    assert "34 to measure in 5 rounds, about" in output
    assert "added, because ratios are divided by them" in output
    assert main(["plan", "table2", "--scale", "laptop", "--results", str(tmp_path)]) == 0
    assert "12 skipped (6 x needs 4 devices, 6 x needs 8 devices)" in capfd.readouterr().out
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_everything_leaves_out_what_has_no_time_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert main(["plan", "--scale", "smoke", "--results", str(tmp_path)]) == 0
    output = capfd.readouterr().out
    assert "table2: " in output
    assert "sweep: " not in output


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_s_help_line_begins_the_help_of_its_options(verb: str):
    options = getattr(import_module(f"repro.cli.{verb}"), f"{verb.capitalize()}Options")
    assert options.__doc__.partition("\n")[0] == VERBS[verb]
    assert len(VERBS[verb]) <= 95


def test_help_is_complete_and_quick(capfd: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    output = capfd.readouterr().out
    for verb in ("list", "plan", "run", "report", "fit", "simulate", "calibrate", "doctor"):
        assert f"repro {verb} " in output
    with pytest.raises(SystemExit) as stop:
        main(["run", "sweep", "--help"])
    assert stop.value.code == 0
    output = capfd.readouterr().out
    flags = (
        "--model-args",
        "--K",
        "--only",
        "--wandb",
        "--force",
        "--spec",
        "--yes",
        "--allow-nonfinite",
    )
    for flag in (*flags, "numbers of stages"):
        assert flag in output
    # a model's
    assert " ".join(output.replace("│", " ").split()).count("which is code and is run") == 1
    for verb, flag in (("simulate", "--link-gbps"), ("calibrate", "--smallest")):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        output = " ".join(capfd.readouterr().out.replace("│", " ").split())
        assert flag in output
        assert "which is code and is run" in output
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "which is code and is run" in " ".join(capfd.readouterr().out.split())
