"""Waiting until a moment of this host's clock, on time and without using a core."""

import ctypes
import math
import os
import threading
import time
from contextlib import suppress
from functools import cache

_TIMER_SLACK = 29  # prctl's PR_SET_TIMERSLACK
# seconds of sleep up to which a wait follows the one before it: more was waiting for a message
_AT_ONCE = 1e-4
_TIMER_LATE = 1e-3  # seconds that a timer may be late; more is something else
_SHARE = 0.1  # of a wait, the most by which it is shortened


@cache
def _sharp(_thread: int) -> None:
    """Have Linux end this thread's sleeps on time and not up to 50 microseconds late, as it does to save energy."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def wait_until(deadline: float) -> None:
    """Sleep until `deadline` on the clock of time.perf_counter; return at once if that has passed.

    Never spins: stages that wait side by side would take the cores from each other and from the
    engine.
    """
    _sharp(threading.get_ident())
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


class Waits:
    """Waits of known length in one process, one behind the other: what one ends late, later ones make good.

    Made good is what no imitated device would suffer: the timer's lateness, up to a millisecond,
    and time in which this thread was ready to run and had no core, since K stages share fewer than
    K (Linux counts it; elsewhere it stays). No wait is shortened by more than a tenth. What passes
    between waits otherwise, the runtime's own work, stays; where the thread slept in between it
    waited for something else, and nothing of before is made good.
    """

    def __init__(self) -> None:
        self._woke, self._worked, self._queued, self._owed = -math.inf, 0.0, 0.0, 0.0

    def after(self, seconds: float) -> float:
        """The moment, on the clock of time.perf_counter, at which a wait ends that begins now."""
        now, queued = time.perf_counter(), _queued()
        without, self._queued = queued - self._queued, queued
        slept = now - self._woke - without - (time.thread_time() - self._worked)
        self._owed = self._owed + without if slept < _AT_ONCE else 0.0
        given = min(self._owed, _SHARE * seconds)
        self._owed -= given
        return now + seconds - given

    def until(self, deadline: float) -> None:
        """Sleep until a moment that `after` told."""
        timer = _TIMER_LATE if time.perf_counter() < deadline else 0.0
        wait_until(deadline)
        self._woke, self._worked, queued = time.perf_counter(), time.thread_time(), _queued()
        self._owed += max(0.0, min(self._woke - deadline, timer + queued - self._queued))
        self._queued = queued


def _queued() -> float:
    """Seconds that this thread has been ready to run without a core; 0 where the system does not tell."""
    file = _schedstat(threading.get_native_id())
    return int(os.pread(file, 64, 0).split()[1]) * 1e-9 if file is not None else 0.0


@cache
def _schedstat(_thread: int) -> int | None:
    """Descriptor of Linux's scheduling counts of this thread, kept for as long as the process lives."""
    with suppress(OSError):
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if len(os.pread(file, 64, 0).split()) == 3:
            return file
        os.close(file)
    return None
