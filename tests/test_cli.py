"""The command from end to end, on a model of known duration and in a results folder of its own."""

import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from repro.cli import doctor
from repro.cli.main import VERBS, main, print_warnings_once
from repro.harness import machine, runner
from repro.harness.frame import all_runs
from repro.harness.request import Status
from repro.harness.results import load
from repro.harness.text import TIMES

sys.path.insert(0, str(Path(__file__).parent / "harness"))
from fakes import FakeWorkers  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups
TIMED = "--model timed --model-args L=2 forward_s=0.01 backward_s=0.02 --N 8".split()
ONCE = "--wandb disabled --scale smoke".split()
QUICK = [*TIMED, *"--warmup 0 --steps 1 --rounds 2".split(), *ONCE]
REFERENCE = Path(__file__).parents[1] / "results/reference"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed layers wait, so two stages run side by side on one core as well."""
    monkeypatch.setattr(machine, "cores", lambda: 2)


def test_a_sweep_from_end_to_end(tmp_path, capfd, monkeypatch):
    sweep = ["run", "sweep", "--K", "1", "2", "--M", "4", "--results", str(tmp_path), *QUICK]
    sweep[sweep.index("L=2")] = "L=3"
    assert main(sweep) == 0
    output = capfd.readouterr().out
    passed = "passed: 3 of 3 runs are done"
    for words in ("3 runs at scale smoke", "over K=1", passed):
        assert words in output
    rows = all_runs(load(tmp_path)).set_index("K")
    assert rows["status"].tolist() == ["done"] * 3  # and plain training
    assert 0 < rows.loc[2, "speedup_vs_k1"] < 2  # ideal with stages of 1 and 2 layers: 1.3
    assert "over plain" in output
    assert rows.loc[2, "speedup_vs_plain"] < rows.loc[2, "speedup_vs_k1"], "timed layers recompute"
    assert set(rows["fidelity"]) == {"emulated"}

    # run_all.sh has a report written in any case
    assert main([*sweep, "--plots", str(tmp_path / "plots")]) == 0
    output = capfd.readouterr().out
    assert "nothing is left to measure" in output
    assert output.endswith(f"passed: 3 of 3 runs are done; page: {tmp_path}/plots/report.html\n")
    assert all_runs(load(tmp_path))["rounds"].tolist() == [2, 2, 2]
    assert not list(tmp_path.rglob("logs/*"))


def test_a_run_that_fails_gives_one(tmp_path, capfd, monkeypatch):
    late = Status("timeout", "no result within 600 s")
    broken = Status("failed", "stage 1: RuntimeError: no")
    workers = FakeWorkers(fail={(2, 1): late, (2, 4): broken})
    monkeypatch.setattr(runner, "workers_for", lambda *_: workers)
    sweep = ["run", "sweep", "--K", "2", "--M", "1", "4", "--results", str(tmp_path), *QUICK]
    assert main(sweep) == 1
    output = capfd.readouterr().out
    assert "timeout (no result within 600 s)" in output
    last = output.splitlines()[-1]
    words = r"not measured: timed-K2-M1-\w+ \(timeout\), timed-K2-M4-\w+ \(failed\); "
    assert re.match(f"failed: 1 of 3 runs are done; {words}", last)


def test_methods_beside_plain_training_and_one_that_is_too_wide(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(runner, "workers_for", lambda *_: FakeWorkers())
    sweep = "run sweep --method single gpipe data 1f1b --M 4 --scale smoke --rounds 5".split()
    sweep += ["--wandb", "disabled", "--results", str(tmp_path), "--K"]
    assert main([*sweep, "2"]) == 0
    output = capfd.readouterr().out
    table = output[output.rindex("\nrun ") :].splitlines()[1:]
    assert table[0].split()[:7] == ["run", "K", "M", "N", "method", "D", "recompute"]
    lines = [line.split() for line in table[1:6]]
    assert [line[4] for line in lines] == ["single", "single", "gpipe", "data", "1f1b"]
    assert [line[6] for line in lines] == ["never", *["always"] * 4]
    assert [line[11].endswith(TIMES) for line in lines] == [False, *[True] * 4], "over plain"
    assert main([*sweep, "2", "3"]) == 1
    output = capfd.readouterr().out
    last = output.splitlines()[-1]
    assert last.startswith("failed: 5 of 5 runs are done; 3 skipped (3 x needs 3 devices), see ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run tabel2", ["experiment = 'tabel2'", "did you mean 'table2'", "repro list"]),
        ("rnu", ["verb = 'rnu'", "did you mean 'run'"]),
        ("predict timed --N 0", ["--N 0: allowed is 1 to 1,048,576"]),
        ("predict timed L=2", ["an argument of the model goes behind --model-args, as L=2"]),
        ("report extra", ["extra; no name is needed here"]),
        ("run sweep --K 0", ["error: K = 0: must be at least 1"]),
        ("run sweep --model-args L=x", ["L='x': must be a whole number; try L=48, the default"]),
        ("report --runs --wandb", ["--runs and --wandb: each is a report of its own; give one"]),
        ("report --runs --plots x", ["--plots and --runs: each is a report of its own; give one"]),
        ("sweep", ["verb = 'sweep'", "try `repro run sweep`"]),
        ("run mine.py", ["mine.py", "path of a .py file"]),
        ("run table2 --rounds 0", ["--rounds 0: allowed is 1 to 1,000,000"]),
        ("run table2 --scale node", ["scale = 'node'", "GPUs", "use --scale smoke"]),
        ("run sweep --recompte never", ["--recompte", "did you mean '--recompute'", "--help"]),
        ("run sweep --only checkpoint=never", ["unknown field", "did you mean 'recompute'?"]),
        ("run sweep --recompute never always", ["always; --recompute takes no further value"]),
        ("run sweep --L 3", ["--L 3; an argument of the model goes behind --model-args, as L=..."]),
        ("predict --model timed", ["--model timed; it comes first, without --model"]),
        ("run sweep --K 1,2", ["--K 1,2: allowed is a whole number; write several as --K 1 2;"]),
        ("run table2 --K 3", ["--only K=3 chooses among its runs, `repro run sweep --K`"]),
        ("run bubble --batch 0", ["--only N=0 chooses among its runs, `repro run sweep --N`"]),
        ("run sweep --micro-batches 4", ["--micro-batches 4; did you mean '--M'?"]),
        ("predict timed --link pci", ["--link pci: allowed is a number"]),
        ("plan table2 --only K=3", ["--only K=3 matches no run of table2: K is 2, 4, 8 there"]),
        ("plan table2 --only method=1f1b", ["no run of table2: method is gpipe there"]),
        ("plan table2 --only K", ["--only K: no value; write K=VALUE, such as K=2"]),
        ("run sweep --method gpip", ["tensor; did you mean 'gpipe'"]),
        ("run sweep --method tensor --K 1", ["devices = 1", "over 2 or more; try --K 2"]),
        ("run sweep --method gpipe --D 2", ["error: D = 2 with method = gpipe: "]),
        ("run sweep --schedule interleaved-1f1b", ["try stages_per_rank=2"]),
        ("run sweep --stages-per-rank 2", ["must be 1 for schedule='gpipe'; leave it out"]),
        ("predict unet --largest 8GB", ["`repro predict unet --K 4 --device v100` shows"]),
        (
            "run sweep --method tensor --K 2 --model amoebanet-d",
            ["model = 'amoebanet-d' with tensor_parallel = 2", "tensor_plan", "'transformer'"],
        ),
        ("report --results none --plots plots", ["results = 'none'", "repro run"]),
    ],
)
def test_a_mistake_is_one_line_and_two(arguments: str, words, tmp_path: Path, refused, monkeypatch):
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.chdir(tmp_path)
    error = refused(arguments.split())
    for word in words:
        assert word in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_folder_that_cannot_be_written_is_one_line_and_two(tmp_path: Path, refused):
    (tmp_path / "file").write_text("")
    (place,) = REFERENCE.glob("*/laptop/breakdown")
    recorded = tmp_path / "recorded"
    shutil.copytree(place, recorded / place.relative_to(REFERENCE))
    for command in (
        ["run", "sweep", *QUICK, "--results", str(tmp_path / "file" / "x")],
        ["report", "--results", str(recorded), "--plots", str(tmp_path / "file" / "plots")],
    ):
        error = refused(command)
        assert error.startswith(f"error: {tmp_path / 'file'}")
        assert "choose another folder with --results" in error


@pytest.mark.parametrize(
    ("words", "status"),
    [("list", 0), (f"report --runs --results {REFERENCE}", 0), ("run figure2 --scale smoke", 1)],
)
def test_a_reader_that_has_closed_the_pipe_is_no_error(words: str, status: int, tmp_path: Path):
    reader, writer = os.pipe()
    os.close(reader)
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-m", "repro", *words.split()]
    buffered["PYTHONPATH"] = str(REFERENCE.parents[1])
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=buffered, text=True, cwd=tmp_path
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (status, "")


def test_a_terminal_that_lacks_a_sign_shows_the_rest():
    ascii_alone = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "repro", "list"]
    done = subprocess.run(command, capture_output=True, env=ascii_alone, text=True, check=True)
    assert "is it negligible at M = 4 ? K?" in done.stdout


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path: Path, refused, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    error = refused(["run", "sweep", "--results", str(tmp_path), *QUICK])
    assert "journal.jsonl: No space left on device; free some space" in error


def test_a_gpu_that_torch_cannot_use_is_loud(tmp_path: Path, capfd, monkeypatch):
    monkeypatch.setattr(doctor, "gpus_of_driver", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(doctor, "the_torch", doctor.Torch)
    assert main(["plan", "table2", "--results", str(tmp_path), "--scale", "smoke"]) == 0
    assert "WARNING: 1 x NVIDIA H200 here, but torch cannot use them: " in capfd.readouterr().err


def test_scale_paper_says_what_it_takes_and_asks(tmp_path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H200",) * 8)
    assert main(["run", "table2", "--scale", "paper", "--results", str(tmp_path)]) == 2
    error = capfd.readouterr().err
    assert "to measure, about 60 min, and trainings have" in error
    assert "add --yes" in error


def test_list_and_plan_say_what_there_is_and_what_is_skipped(tmp_path: Path, capfd):
    assert main(["list"]) == 0
    output = capfd.readouterr().out
    for words in ("NeurIPS Table 4", "table2", "Table 2: How does", "8 devices", "sweep"):
        assert words in output
    table2 = ["plan", "table2", "--scale", "laptop", "--results", str(tmp_path)]
    assert main([*table2, "--only", "K=2,M=4"]) == 0
    output = capfd.readouterr().out
    assert "18 to measure, about" in output
    assert "9 added, because ratios are divided by them" in output
    assert main(table2) == 0
    assert "12 skipped (6 x needs 4 devices, 6 x needs 8 devices)" in capfd.readouterr().out
    assert main(["plan", "--scale", "smoke", "--results", str(tmp_path)]) == 0
    output = capfd.readouterr().out
    assert "table2: " in output
    assert "sweep: " not in output, "it has no time of its own"
    assert not list(tmp_path.iterdir())


def test_help_is_complete(capfd: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    output = capfd.readouterr().out
    assert all(f"repro {verb} " in output for verb in VERBS)
    sweep = "--model-args --K --only --wandb --force --yes".split()
    for words, flags in (
        ("run sweep", [*sweep, "numbers of stages"]),
        ("run", ["--scale"]),
        ("predict", ["--link"]),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*words.split(), "--help"])
        assert stop.value.code == 0
        output = " ".join(capfd.readouterr().out.replace("│", " ").split())
        assert [flag for flag in flags if flag not in output] == []
        assert output.count("which is code and is run") == 1, "a model or a file of one's own"


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_line_once(monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setattr(warnings, "showwarning", None)  # put back at the end
    print_warnings_once()
    for text in ("one\n line\x1b", "one\n line\x1b", "two"):
        warnings.warn(text, stacklevel=1)
    assert capfd.readouterr().err == "warning: one line\\x1b\nwarning: two\n"


def test_hints_name_the_command_as_the_user_called_it(monkeypatch, refused):
    monkeypatch.setattr(sys, "argv", [".venv/bin/repro"])
    hint = refused(["run", "sweep", "--chekpoint", "never"])
    assert "`.venv/bin/repro run sweep --help` lists" in hint
