"""Waits end on time, never early, and cost nothing."""

import time

import pytest

from repro.gpipe import clock
from repro.gpipe.clock import Waits, wait_until


def test_waits_as_long_as_asked():
    # Never shorter; longer only by what a busy machine adds.
    took = []
    for _ in range(5):
        start = time.perf_counter()
        wait_until(start + 0.02)
        took.append(time.perf_counter() - start)
    assert min(took) >= 0.02
    assert min(took) < 0.03


def test_waiting_leaves_the_core_to_others():
    start = time.process_time()
    wait_until(time.perf_counter() + 0.1)
    assert time.process_time() - start < 0.03


def test_a_moment_that_has_passed_is_no_sleep(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: 1 / 0)
    wait_until(time.perf_counter())


def test_what_one_wait_ends_late_the_next_makes_good(monkeypatch):
    """A clock on which every sleep ends 0.3 ms late, and 0.1 ms pass between two waits."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds + 3e-4

    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(clock.time, "sleep", sleep)
    waits = Waits()
    for _ in range(10):
        waits.until(waits.begin() + 0.02)
        now[0] += 1e-4
    assert now[0] == pytest.approx(10 * (0.02 + 1e-4) + 3e-4)
    now[0] += 0.05  # no core to be had
    waits.until(now[0] - 0.05)
    assert waits.begin() == pytest.approx(now[0] - 1e-3)
    now[0] += 1.0  # it waited for a message: nothing to make good
    assert waits.begin() == now[0]
