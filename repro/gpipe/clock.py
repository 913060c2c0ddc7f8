"""Waiting until a moment of this host's clock, on time and without using a core."""

import ctypes
import math
import threading
import time
from contextlib import suppress
from functools import cache

_TIMER_SLACK = 29  # prctl's PR_SET_TIMERSLACK
_AT_ONCE = 1e-3  # seconds from one wait to the next that follows it without waiting for a message


@cache
def _sharp(_thread: int) -> None:
    """Have Linux end this thread's sleeps on time and not up to 50 microseconds late, as it does to save energy."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(_TIMER_SLACK, 1, 0, 0, 0)


def wait_until(deadline: float) -> None:
    """Sleep until `deadline` on the clock of time.perf_counter; return at once if that has passed.

    Never spins: stages that wait side by side would take the cores from each other and from the engine.
    """
    _sharp(threading.get_ident())
    while (left := deadline - time.perf_counter()) > 0:
        time.sleep(left)


class Waits:
    """Waits of known length in one process: what one of them ends late, the next one makes good if it begins at once.

    A sleep ends a tenth of a millisecond late; an imitated device would not. More than a millisecond is no timer's, but
    a core that was not to be had, and stays; so does what passes between two waits, the runtime's own time.
    """

    def __init__(self) -> None:
        self._woke, self._late = -math.inf, 0.0

    def begin(self) -> float:
        """The moment from which a wait counts that begins now, in seconds of time.perf_counter."""
        now = time.perf_counter()
        return now - self._late if now - self._woke < _AT_ONCE else now

    def until(self, deadline: float) -> None:
        """Sleep until then."""
        wait_until(deadline)
        self._woke = time.perf_counter()
        self._late = min(self._woke - deadline, _AT_ONCE)
