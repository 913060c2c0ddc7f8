"""The CPU time of other processes: what counts as theirs, and what a quota leaves them."""

import subprocess
import sys

import pytest

from repro.harness import contention, machine
from repro.harness.contention import CpuShare, is_busy

BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_what_the_machine_did_and_we_did_not_is_load(monkeypatch: pytest.MonkeyPatch):
    """Of four cores three were busy, and two of them were ours."""
    now = {"time": 100.0, "all": 1000.0, "own": 50.0}
    monkeypatch.setattr(contention.time, "monotonic", lambda: now["time"])
    for name in ("all", "own"):
        monkeypatch.setattr(contention, f"_{name}_seconds", lambda name=name: now[name])
    monkeypatch.setattr(machine, "cores", lambda: 4)
    watch = CpuShare()
    now = {"time": 110.0, "all": 1030.0, "own": 70.0}
    assert watch.share() == pytest.approx(1 / 4)
    assert is_busy(watch.share())
    assert CpuShare().share() is None, "no time has passed"


def test_a_quota_is_shared_inside_its_container_alone(monkeypatch: pytest.MonkeyPatch):
    text = "usage_usec 7000000\nuser_usec 1"
    monkeypatch.setattr(machine, "of_container", lambda name: text if name == "cpu.stat" else "")
    monkeypatch.setattr(machine, "cores", lambda: len(machine.cpus()))
    assert contention._all_seconds() > 7.0, "of the whole machine"
    monkeypatch.setattr(machine, "cpus", lambda: set(range(99)))
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert contention._all_seconds() == 7.0


def test_processes_that_we_started_are_ours_also_when_they_have_ended():
    before = contention._own_seconds()
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert contention._own_seconds() - before >= 0.28  # ticks are of 0.01 s
            child.communicate(b"\n")
    assert contention._own_seconds() - before >= 0.56
    assert contention._all_seconds() > contention._own_seconds() > 0
