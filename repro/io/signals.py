"""Signals that end a program as Ctrl-C does: in order, with what is finished kept."""

import signal
from contextlib import suppress

_heard: list[int] = []


def heed() -> None:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, and be remembered."""
    _heard.clear()

    def stop(number: int, _frame: object) -> None:
        _heard.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # what nohup ignores stays ignored
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with suppress(ValueError):  # only the main thread may
                signal.signal(number, stop)


def heard() -> bool:
    """Whether a signal came."""
    return bool(_heard)


def check() -> None:
    """Raise KeyboardInterrupt if a signal came: where a library was being imported, it may have swallowed the first."""
    if heard():
        raise KeyboardInterrupt


def exit_status() -> int:
    """That of a program which the first signal has ended."""
    return 128 + (_heard or [signal.SIGINT])[0]
