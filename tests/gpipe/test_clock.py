"""Waits end on time, never early, and cost nothing."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from repro.gpipe.runtime import clock
from repro.gpipe.runtime.clock import Waits, wait_until


def test_waits_as_long_as_asked_and_leaves_the_core_to_others():
    took, computed = [], time.process_time()
    for _ in range(5):
        start = time.perf_counter()
        wait_until(start + 0.02)
        took.append(time.perf_counter() - start)
    # Never shorter; longer only by what a busy machine adds.
    assert 0.02 <= min(took) < 0.03
    assert time.process_time() - computed < 0.03


class Imitated:
    """A thread's clocks: every sleep ends 0.3 ms late, and what else happens is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.worked = self.queued = 0.0
        monkeypatch.setattr(clock.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(clock.time, "thread_time", lambda: self.worked)
        monkeypatch.setattr(clock.time, "sleep", lambda seconds: self.passes(seconds + 3e-4))
        monkeypatch.setattr(clock, "_queued", lambda: self.queued)

    def passes(self, asleep: float = 0.0, *, working: float = 0.0, queued: float = 0.0) -> None:
        """Time, by what the thread did meanwhile."""
        self.now += asleep + working + queued
        self.worked += working
        self.queued += queued


def test_what_one_wait_ends_late_the_next_makes_good(monkeypatch):
    thread, waits = Imitated(monkeypatch), Waits()
    for _ in range(10):
        waits.until(waits.after(0.02))
        thread.passes(working=1e-4)
    assert thread.now == pytest.approx(10 * (0.02 + 1e-4) + 3e-4), "its own work stays"
    thread.passes(1.0, queued=5e-3)
    assert waits.after(0.02) == thread.now + 0.02, "who slept in between waited for something else"


def test_a_core_that_was_not_to_be_had_is_made_good_bit_by_bit(monkeypatch):
    thread, waits = Imitated(monkeypatch), Waits()
    waits.until(waits.after(0.02))
    thread.passes(working=1e-4, queued=5e-3)
    began = thread.now
    waits.until(waits.after(0.02))
    assert thread.now - began == pytest.approx(0.9 * 0.02 + 3e-4), "a tenth at most"
    for _ in range(10):
        waits.until(waits.after(0.02))
    assert thread.now == pytest.approx(12 * 0.02 + 1e-4 + 3e-4)


@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="Linux alone counts it"
)
def test_time_without_a_core_is_counted():
    """Another process takes half of the one core that this thread may use."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        queued, start = clock._queued(), time.perf_counter()
        while time.perf_counter() < start + 0.5:
            pass
        assert 0.1 < clock._queued() - queued < 0.5
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, cores)
