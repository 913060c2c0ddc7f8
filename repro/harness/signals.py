"""Signals that end a program as Ctrl-C does: in order, with what is finished kept."""

import signal
from contextlib import suppress


def heed() -> list[int]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt; the list gets the one that did."""
    heard: list[int] = []

    def stop(number: int, _frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # what nohup ignores stays ignored
            with suppress(ValueError):  # only the main thread may
                signal.signal(number, stop)
    return heard
