"""The CPU time of other processes: what counts as theirs, and what a quota leaves them."""

import subprocess
import sys

import pytest

from repro.harness import contention, machine
from repro.harness.contention import CpuShare, describe, is_busy

BURN = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Counters that a test moves by hand, on a machine with four CPUs that are all ours."""
    now = {"time": 100.0, "machine": 1000.0, "own": 50.0, "cores": 4}
    monkeypatch.setattr(contention.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(contention, "_machine_seconds", lambda: now["machine"])
    monkeypatch.setattr(contention, "_own_seconds", lambda: now["own"])
    monkeypatch.setattr(contention, "_container_seconds", lambda: now.get("container"))
    monkeypatch.setattr(contention, "_cpus", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "cores", lambda: now["cores"])
    return now


def test_what_the_machine_did_and_we_did_not_is_load(clock: dict[str, float]):
    watch = CpuShare()
    clock["time"] += 10
    clock["machine"] += 30  # three cores, of which two were ours
    clock["own"] += 20
    assert watch.share() == pytest.approx(1 / 4)
    assert describe(1 / 4) == "other processes take 1.0 of 4 cores"


def test_a_quota_is_shared_inside_its_container(clock: dict[str, float]):
    clock |= {"cores": 2, "container": 7.0}
    watch = CpuShare()
    clock["time"] += 10
    clock["machine"] += 10
    clock["container"] += 10
    clock["own"] += 5
    assert watch.share() == pytest.approx(0.25)


def test_too_short_an_interval_and_an_unknown_machine_say_nothing(clock: dict[str, float]):
    watch = CpuShare()
    clock["time"] += 0.4
    assert watch.share() is None
    clock["machine"] = 0.0
    watch = CpuShare()
    clock["time"] += 10
    assert watch.share() is None
    assert not is_busy(None)


def test_processes_that_we_started_are_ours_also_when_they_have_ended():
    before = contention._own_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert contention._own_seconds() - before >= 0.28  # ticks are of 0.01 s
    with subprocess.Popen(
        [sys.executable, "-c", f"{BURN}\nprint(flush=True)\ninput()"], stdin=-1, stdout=-1
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert contention._own_seconds() - before >= 0.56
        child.communicate(b"\n")


def test_this_machine_counts():
    assert contention._machine_seconds() > contention._own_seconds() > 0
