"""Signals wait where a process is being started."""

import signal

from repro.io.signals import delayed


def test_a_signal_is_delayed():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[str] = []
    try:
        with delayed():
            signal.raise_signal(signal.SIGINT)
            done.append("the rest")
    except KeyboardInterrupt:
        done.append("interrupted")
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["the rest", "interrupted"]
