"""Signals that end a program in order, as Ctrl-C does, so that finished work is kept."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PR_SET_PDEATHSIG = 1
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AT_ONCE = 2.0  # seconds after a signal in which another one does not disturb the end in order
_received: list[tuple[float, int]] = []  # moments, and numbers of signals


def install_handlers() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, and record them."""
    _received.clear()

    def stop(number: int, _frame: object) -> None:
        _received.append((time.monotonic(), number))
        if len(_received) == 1 or _received[-1][0] - _received[-2][0] > _AT_ONCE:
            raise KeyboardInterrupt

    for number in _STOPS:
        # A signal that nohup ignores stays ignored.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with suppress(ValueError):  # only the main thread may set handlers
                signal.signal(number, stop)


@contextmanager
def delayed() -> Iterator[None]:
    """Delay the handling of signals until the end of the block."""
    came: list[int] = []
    handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():  # which handles all signals
            for number in _STOPS:
                if callable(signal.getsignal(number)):
                    handlers[number] = signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            handlers[number](number, None)


def was_signalled() -> bool:
    return bool(_received)


def check() -> None:
    """Raise KeyboardInterrupt after a signal; a library's import may have swallowed it."""
    if was_signalled():
        raise KeyboardInterrupt


def exit_status() -> int:
    """Exit status of a program that was ended by the first signal: 128 + its number."""
    number = _received[0][1] if _received else signal.SIGINT
    return 128 + number


def end_with_parent() -> None:
    """End this process when the thread that has started it ends."""
    if sys.platform == "linux":  # elsewhere the process ends when the store does not answer
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
