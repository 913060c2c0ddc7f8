"""Sleeps that end at a given moment: on time and without using a core."""

import ctypes
import math
import os
import threading
import time
from contextlib import suppress
from functools import cache

_TIMER_SLACK = 29  # prctl's PR_SET_TIMERSLACK
# Up to so many seconds of sleep between two waits, the second follows the first. A longer sleep is
# a wait for a message.
_AT_ONCE = 1e-4
_TIMER_LATE = 1e-3  # seconds that a timer may be late; more has another cause
_SHARE = 0.1  # the most by which a wait is shortened, as a fraction of it


@cache
def _sharp(_thread: int) -> None:
    """Make Linux end this thread's sleeps on time; by default they may end 50 microseconds late."""
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
    """Waits of known length in one thread; when one ends late, the next ones are shortened.

    They make up for what an emulated device would not lose: the lateness of timers, and time in
    which this thread was ready to run but had no core, as far as Linux counts that. No wait is
    shortened by more than a tenth. What the thread computes between waits counts as it is. Where it
    slept between two waits, it waited for something else: then nothing of before is made up for.
    """

    def __init__(self) -> None:
        self._woke = -math.inf  # when the last wait ended
        self._cpu_s = 0.0  # CPU time of this thread at that moment
        self._queued_s = 0.0  # see `_queued`, at the last look
        self._owed_s = 0.0  # by which the next waits are to be shortened

    def after(self, seconds: float) -> float:
        """The moment, on the clock of time.perf_counter, at which a wait ends that begins now."""
        now, queued_s = time.perf_counter(), _queued()
        without_core = queued_s - self._queued_s
        self._queued_s = queued_s
        slept = now - self._woke - without_core - (time.thread_time() - self._cpu_s)
        self._owed_s = self._owed_s + without_core if slept < _AT_ONCE else 0.0
        shortened_by = min(self._owed_s, _SHARE * seconds)
        self._owed_s -= shortened_by
        return now + seconds - shortened_by

    def until(self, deadline: float) -> None:
        """Sleep until a moment that `after` returned."""
        timer_late = _TIMER_LATE if time.perf_counter() < deadline else 0.0
        wait_until(deadline)
        self._woke, self._cpu_s, queued_s = time.perf_counter(), time.thread_time(), _queued()
        late = self._woke - deadline
        self._owed_s += max(0.0, min(late, timer_late + queued_s - self._queued_s))
        self._queued_s = queued_s


def _queued() -> float:
    """Seconds that this thread was ready to run without a core; 0 where they are not counted."""
    file = _schedstat(threading.get_native_id())
    return int(os.pread(file, 64, 0).split()[1]) * 1e-9 if file is not None else 0.0


@cache
def _schedstat(_thread: int) -> int | None:
    """Descriptor of Linux's scheduling counts of this thread; open while the process lives."""
    with suppress(OSError):
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if len(os.pread(file, 64, 0).split()) == 3:
            return file
        os.close(file)
    return None
