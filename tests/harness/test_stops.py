"""A sweep stopped at each of its writes: nothing recorded is lost, nothing is left behind.

The crew measures without processes; tests/harness/test_interrupts.py kills real ones.
"""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, experiment, measure, spec

from repro.harness.frame import all_runs
from repro.harness.journal import journals
from repro.harness.results import load
from repro.io import files, lock

SWEEP = experiment(spec(1, 4), spec(2, 4), spec(4, 4))


class Killed(BaseException):
    """Passes everything, as a kill does."""


class Disk:
    """Counts what is written, and stops when it is there but not yet sure to stay."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.writes = self.kill_at = 0
        patch.setattr(files.os, "fsync", self._fsync)

    def _fsync(self, _: int) -> None:
        self.writes += 1
        if self.writes == self.kill_at:
            raise Killed

    def killed(self, at: int, results: Path, **options: Any) -> bool:
        """Whether a sweep was killed at that write; then the next one goes on."""
        self.writes, self.kill_at = 0, at
        with suppress(Killed):
            assert measure(results, Crew(), SWEEP, **options) == 0
            return False
        return True


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def kept(results: Path) -> dict[str, object]:
    """What is recorded, without times and load, and the name of every other file."""
    (journal,) = journals(results)
    rounds = [(event.round, event.records, event.spans) for event in journal.rounds]
    statuses = {run: journal.status(run) for run in journal.runs}
    paths = (path for path in results.rglob("*") if path.is_file() and path.name != lock.NAME)
    files = sorted(str(path.relative_to(results)) for path in paths)
    return {"rounds": rounds, "statuses": statuses, "about": journal.about, "files": files}


def test_killed_at_any_write_a_sweep_goes_on_to_the_same_end(tmp_path: Path, disk: Disk):
    assert not disk.killed(0, tmp_path / "undisturbed")
    whole = kept(tmp_path / "undisturbed")
    for number in range(1, disk.writes + 1):
        assert disk.killed(number, tmp_path / str(number))
        assert not disk.killed(0, tmp_path / str(number))
        assert kept(tmp_path / str(number)) == whole, number


def test_killed_at_any_write_of_a_forced_sweep_no_run_is_left_with_less(tmp_path: Path, disk: Disk):
    assert not disk.killed(0, tmp_path)
    for number in count(1):
        if not disk.killed(number, tmp_path, force=True):
            break
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 1, "the old rounds go when the first fresh one is there"
        assert not disk.killed(0, tmp_path)
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 2
    assert number > 3
    assert all_runs(load(tmp_path))["rounds"].tolist() == [2, 2, 0]
