"""The results of other machines, in folders of their own, beside those of this one."""

from pathlib import Path

import pytest
from fakes import FakeWorkers, experiment, measure, spec

from repro.cli.main import main
from repro.harness.machine import Machine
from repro.harness.results import load_beside

CPU = Machine("cpu", "Test CPU", 2, "shm", "2.15.0")
GPUS = Machine("cuda", "NVIDIA H100", 2, "nccl", "2.15.0")
SWEEP = experiment(spec(1, 1), spec(2, 4))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("local")
    assert measure(results, FakeWorkers(), SWEEP, machine=CPU) == 0
    return results


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a machine with two GPUs."""
    results = tmp_path_factory.mktemp("sent")
    assert measure(results, FakeWorkers(), SWEEP, machine=GPUS) == 0
    return results


def test_both_machines_are_shown_and_never_divided_by_each_other(local, sent, tmp_path, capsys):
    plots = tmp_path / "plots"
    report = ["report", "--results", str(local), "--plots", str(plots)]
    assert main([*report, "--with", str(sent)]) == 0
    assert f"{sent}: tiny of 2x-h100" in capsys.readouterr().out
    page = (plots / "report.html").read_text()
    assert "test-cpu-2c" in page
    assert "2x-h100" in page
    # The next report is without them.
    assert main(report) == 0
    assert "2x-h100" not in (plots / "report.html").read_text()
    results, _ = load_beside(local, [sent])
    assert len({run.machine for run in results.runs}) == 2
    for wide in [each for each in results.runs if each.K == 2]:
        assert results.timeline(wide) is not None
        base = results.baseline(wide, K=1, M=1)
        assert base is not None
        assert base.machine == wide.machine


def test_the_same_results_are_shown_once_and_machines_of_one_kind_keep_apart(sent, tmp_path):
    results, lines = load_beside(sent, [sent, sent])
    assert len(results.runs) == 2
    assert all("tiny of 2x-h100 is among the results already" in line for line in lines)
    measure(tmp_path / "other", FakeWorkers(), experiment(spec(1, 2)), machine=GPUS)
    results, lines = load_beside(tmp_path / "none", [sent, tmp_path / "other"])
    names = [line.split()[-1] for line in lines]
    assert names[0] == "2x-h100"
    assert names[1].startswith("2x-h100-")
    assert {run.machine for run in results.runs} == set(names)
    assert all(results.timeline(run) is not None for run in results.runs)


def test_a_folder_without_results_is_one_line(sent, tmp_path, refused):
    assert str(tmp_path) in refused(["report", "--results", str(sent), "--with", str(tmp_path)])
