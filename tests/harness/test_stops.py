"""A forced sweep stopped at each of its writes: nothing recorded is lost.

The workers are no processes; tests/harness/test_interrupts.py kills real ones.
"""

from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeWorkers, experiment, measure, spec

from repro.harness.frame import all_runs
from repro.harness.results import load
from repro.io import files

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
            assert measure(results, FakeWorkers(), SWEEP, **options) == 0
            return False
        return True


def test_killed_at_any_write_of_a_forced_sweep_no_run_is_left_with_less(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    assert not disk.killed(0, tmp_path)
    for number in count(1):
        if not disk.killed(number, tmp_path, force=True):
            break
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 1, "the old rounds go when the first fresh one is there"
        assert not disk.killed(0, tmp_path)
        one, two, _ = all_runs(load(tmp_path))["rounds"]
        assert min(one, two) >= 2
    assert number == 3, "each round is one write"
    assert all_runs(load(tmp_path))["rounds"].tolist() == [2, 2, 0]
