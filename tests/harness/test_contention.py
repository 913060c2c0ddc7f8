"""The CPU time of other processes: what counts as theirs, and what a quota leaves them."""

import subprocess
import sys

import pytest

from repro.harness import contention, machine
from repro.harness.contention import CpuShare, describe, is_busy

QUOTA = {"cores": 2, "container": 7.0}
BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


@pytest.mark.parametrize(
    ("passed", "start", "share"),
    [
        ({"time": 10, "machine": 30, "own": 20}, {}, 1 / 4),  # of three cores two were ours
        # A quota is shared inside its container.
        ({"time": 10, "machine": 10, "own": 5, "container": 10}, QUOTA, 1 / 4),
        ({"time": 0.4, "machine": 1}, {}, None),
        ({"time": 10}, {"machine": 0.0}, None),
    ],
    ids=["load", "quota", "too short", "unknown machine"],
)
def test_what_the_machine_did_and_we_did_not_is_load(passed, start, share, monkeypatch):
    now = {"time": 100.0, "machine": 1000.0, "own": 50.0, "cores": 4} | start
    monkeypatch.setattr(contention.time, "monotonic", lambda: now["time"])
    for name in ("machine", "own", "container"):
        monkeypatch.setattr(contention, f"_{name}_seconds", lambda name=name: now.get(name))
    monkeypatch.setattr(machine, "cpus", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "cores", lambda: now["cores"])
    watch = CpuShare()
    for name, amount in passed.items():
        now[name] += amount
    assert watch.share() == pytest.approx(share)
    assert is_busy(watch.share()) == (share is not None)
    if now["cores"] == 4:
        assert describe(1 / 4) == "other processes take 1.0 of 4 cores"


def test_processes_that_we_started_are_ours_also_when_they_have_ended():
    before = contention._own_seconds()
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", BURN], stdin=-1, stdout=-1) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert contention._own_seconds() - before >= 0.28  # ticks are of 0.01 s
            child.communicate(b"\n")
    assert contention._own_seconds() - before >= 0.56
    assert contention._machine_seconds() > contention._own_seconds() > 0
