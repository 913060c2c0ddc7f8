"""Waits end on time, never early, and cost nothing; what one loses the next ones make good."""

import time

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
    assert clock._queued() >= 0


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


def test_what_one_wait_ends_late_the_next_ones_make_good(monkeypatch):
    thread, waits = Imitated(monkeypatch), Waits()
    for _ in range(10):
        waits.until(waits.after(0.02))
        thread.passes(working=1e-4)
    assert thread.now == pytest.approx(10 * (0.02 + 1e-4) + 3e-4), "its own work stays"
    thread.passes(queued=5e-3)  # without a core, which is made good bit by bit
    began = thread.now
    waits.until(waits.after(0.02))
    assert thread.now - began == pytest.approx(0.9 * 0.02 + 3e-4), "a tenth at most"
    thread.passes(1.0, queued=5e-3)
    assert waits.after(0.02) == thread.now + 0.02, "who slept in between waited for something else"
