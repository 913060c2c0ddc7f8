"""Signals that end a program in order, as Ctrl-C does, with finished work kept."""

import signal
import time
from contextlib import suppress

_AT_ONCE = 2.0  # seconds in which further signals are one with the first: a double Ctrl-C, say
_received: list[int] = []


def install_handlers() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, and remember that they came.

    The end in order that follows is not disturbed by a second signal right behind.
    """
    _received.clear()
    heeded_until = 0.0

    def stop(number: int, _frame: object) -> None:
        nonlocal heeded_until
        _received.append(number)
        if time.monotonic() > heeded_until:
            heeded_until = time.monotonic() + _AT_ONCE
            raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # A signal that nohup ignores stays ignored.
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with suppress(ValueError):  # only the main thread may set handlers
                signal.signal(number, stop)


def was_signalled() -> bool:
    return bool(_received)


def check() -> None:
    """Raise KeyboardInterrupt if a signal came; a library's import may have swallowed the first."""
    if was_signalled():
        raise KeyboardInterrupt


def exit_status() -> int:
    """Exit status of a program that was ended by the first signal: 128 + its number."""
    number = _received[0] if _received else signal.SIGINT
    return 128 + number
