"""Signals wait where a process is being started."""

import signal

from repro.io.signals import delayed


def test_a_signal_is_delayed():
    done: list[str] = []
    try:
        with delayed():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    except KeyboardInterrupt:
        done.append("interrupted")
    assert done == ["the rest", "interrupted"]
