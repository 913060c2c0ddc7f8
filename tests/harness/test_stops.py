"""A sweep stopped at each of its writes: nothing recorded is lost, nothing is left behind.

The crew measures without processes; tests/harness/test_campaign.py kills real ones.
"""

import errno
import os
from contextlib import suppress
from itertools import count
from math import inf
from pathlib import Path

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
        self.begin()
        patch.setattr(files.os, "fsync", self._fsync)

    def begin(self, kill_at: int = 0, full_from: float = inf) -> None:
        """Count anew; fail at that write, or at every one from that on."""
        self.writes, self.kill_at, self.full_from = 0, kill_at, full_from

    def _fsync(self, _: int) -> None:
        self.writes += 1
        if self.writes >= self.full_from:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.writes == self.kill_at:
            raise Killed


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


def test_killed_or_full_at_any_write_a_sweep_goes_on_to_the_same_end(tmp_path: Path, disk: Disk):
    assert measure(tmp_path / "undisturbed", Crew(), SWEEP) == 0
    writes, whole = disk.writes, kept(tmp_path / "undisturbed")
    for number in range(1, writes + 1):
        results = tmp_path / f"killed {number}"
        disk.begin(kill_at=number)
        with pytest.raises(Killed):
            measure(results, Crew(), SWEEP)
        disk.begin()
        assert measure(results, Crew(), SWEEP) == 0
        assert kept(results) == whole, number

        results = tmp_path / f"full {number}"
        disk.begin(full_from=number)
        with pytest.raises(OSError, match="No space left on device") as caught:
            measure(results, Crew(), SWEEP)
        assert str(caught.value.filename).startswith(str(results))
        assert not list(results.rglob(".*.*.*")), "what was half written takes up room"
        disk.begin()
        assert measure(results, Crew(), SWEEP) == 0
        assert kept(results) == whole, number


def test_killed_at_any_write_of_a_forced_sweep_no_run_is_left_with_less(tmp_path: Path, disk: Disk):
    assert measure(tmp_path, Crew(), SWEEP) == 0
    for number in count(1):
        disk.begin(kill_at=number)
        with suppress(Killed):
            measure(tmp_path, Crew(), SWEEP, force=True)
            break
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 1, "the old rounds go when the first fresh one is there"
        disk.begin()
        assert measure(tmp_path, Crew(), SWEEP) == 0
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 2
    assert number > 3
    assert all_runs(load(tmp_path))["rounds"].tolist() == [2, 2, 0]
