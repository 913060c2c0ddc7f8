"""Results of a machine in one file: packed on one, shown beside those of another, whatever is in
them."""

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from crew import Crew, experiment, measure, spec

from repro.cli.main import main
from repro.gpipe.schedule.replay import replay
from repro.harness import bundle
from repro.harness.job import Job, Outcome
from repro.harness.machine import Machine

CPU = Machine("cpu", "Test CPU", 2, "shm", "2.15.0")
GPUS = Machine("cuda", "NVIDIA H100", 2, "nccl", "2.15.0")


class Pipelines(Crew):
    """Measures whole pipeline steps, with every span."""

    def measure(self, job: Job, deadline: float) -> Outcome:
        outcome = super().measure(job, deadline)
        timeline = replay(job.spec.make_schedule(), lambda action: 0.1)
        assert outcome.measured is not None
        return replace(outcome, measured=replace(outcome.measured, timeline=timeline))


SWEEP = experiment(spec(1, 1), spec(2, 4))
GPU_JOURNAL = "2x-h100/smoke/tiny/journal.jsonl"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("local")
    assert measure(results, Pipelines(), SWEEP, machine=CPU) == 0
    return results


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a machine with two GPUs."""
    folder = tmp_path_factory.mktemp("sent")
    assert measure(folder / "results", Pipelines(), SWEEP, machine=GPUS) == 0
    bundle.write_bundle(folder / "results", folder / "gpus.zip")
    return folder / "gpus.zip"


def test_both_machines_are_shown_and_never_divided_by_each_other(local, sent, tmp_path, capsys):
    plots = tmp_path / "plots"
    report = ["report", "--results", str(local), "--plots", str(plots)]
    assert main([*report, "--with", str(sent)]) == 0
    assert f"{sent}: tiny of 2x-h100" in capsys.readouterr().out
    page = (plots / "report.html").read_text()
    assert "test-cpu-2c" in page
    assert "2x-h100" in page
    # The next report is without the bundle.
    assert main(report) == 0
    assert "2x-h100" not in (plots / "report.html").read_text()
    results, _ = bundle.merge(local, [sent], tmp_path)
    assert len({run.machine for run in results.runs}) == 2
    for wide in [each for each in results.runs if each.K == 2]:
        assert results.timeline(wide) is not None
        base = results.baseline(wide, K=1, M=1)
        assert base is not None
        assert base.machine == wide.machine


def test_the_same_results_are_shown_once_and_machines_of_one_kind_keep_apart(sent, tmp_path):
    results, lines = bundle.merge(sent.parent / "results", [sent, sent], tmp_path / "a")
    assert len(results.runs) == 2
    assert "tiny of 2x-h100 is among the results already" in lines[1]
    measure(tmp_path / "other", Pipelines(), experiment(spec(1, 2)), machine=GPUS)
    bundle.write_bundle(tmp_path / "other", tmp_path / "other.zip")
    results, lines = bundle.merge(tmp_path / "none", [sent, tmp_path / "other.zip"], tmp_path / "b")
    names = [line.split()[-1] for line in lines]
    assert names[0] == "2x-h100"
    assert names[1].startswith("2x-h100-")
    assert {run.machine for run in results.runs} == set(names)


def test_spans_of_another_schedule_are_refused(tmp_path):
    """The digests are those of whoever wrote it."""
    assert measure(tmp_path / "results", Crew(), SWEEP, machine=GPUS) == 0
    bundle.write_bundle(tmp_path / "results", tmp_path / "odd.zip")
    with pytest.raises(ValueError, match=r"odd.zip: the spans of .* are not those of K="):
        bundle.merge(tmp_path / "none", [tmp_path / "odd.zip"], tmp_path / "unpacked")


DAMAGED = {
    "no journal": lambda e: e.pop(GPU_JOURNAL),
    "an edited record": lambda e: e.update({GPU_JOURNAL: e[GPU_JOURNAL].replace(b".75", b".25")}),
    "another file": lambda e: e.update({"run.sh": b"echo"}),
    "a path out of it": lambda e: e.update({"../smoke/tiny/journal.jsonl": b""}),
    "more than is read": lambda e: e.update({GPU_JOURNAL: b" " * 10_000_000}),
    "no plan": lambda e: e.update({GPU_JOURNAL: b""}),
    "no spans": lambda e: e.update({next(n for n in e if n.endswith(".gz")): b""}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_bundle_is_one_line(sent, tmp_path, damage, monkeypatch):
    with zipfile.ZipFile(sent) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    DAMAGED[damage](entries)
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    monkeypatch.setattr(bundle, "_LARGEST", 100_000)
    with pytest.raises(ValueError, match=rf"^{bad}: [^\n]*$"):
        bundle.merge(tmp_path / "none", [bad], tmp_path / "unpacked")
    assert {path.name for path in tmp_path.iterdir()} <= {"bad.zip", "unpacked"}
