"""The share of CPU time that other processes take while runs are measured.

It is the CPU time that all processes used, minus that of this process and of those that it started.
The load average would not do: it includes our own workers, and it lags by a minute.
"""

import time
from contextlib import suppress
from typing import TypeGuard

from repro.harness import machine

BUSY = 0.1  # a larger share of the usable cores disturbs a measurement
SHORTEST = 0.5  # seconds; CPU time is counted in ticks of 10 ms, too coarse for less


class CpuShare:
    """Counts CPU time from its creation on."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._all, self._own = _all_seconds(), _own_seconds()

    def share(self) -> float | None:
        """Average share of the usable cores, 0 to 1, that other processes took so far.

        None if less than `SHORTEST` seconds have passed, or if the system does not count CPU time.
        """
        seconds = time.monotonic() - self._began
        if seconds < SHORTEST or not self._all:
            return None
        others = (_all_seconds() - self._all) - max(0.0, _own_seconds() - self._own)
        return min(1.0, max(0.0, others / seconds / machine.cores()))


def is_busy(share: float | None) -> TypeGuard[float]:
    return share is not None and share > BUSY


def _all_seconds() -> float:
    """CPU seconds of all processes that share our cores; 0 if the system does not count it."""
    import psutil

    # A quota below the number of cores is shared inside the container. Processes outside of it can
    # use the other cores.
    counts = machine.of_container("cpu.stat").split()
    if counts and machine.cores() < len(machine.cpus()):
        return int(counts[counts.index("usage_usec") + 1]) / 1e6
    try:
        each = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error, NotImplementedError):
        return 0.0
    # Interrupts are left out, since messages between our own stages cause some. `steal` is time
    # of another virtual machine on the same hardware.
    kinds = ("user", "nice", "system", "steal")
    ours = [times for number, times in enumerate(each) if number in machine.cpus()]
    return sum(getattr(times, kind, 0.0) for times in ours for kind in kinds)


def _own_seconds() -> float:
    """CPU seconds of this process and of all that it started, ended ones included."""
    import psutil

    root = psutil.Process()
    # torchrun starts the ranks of a host as siblings, each with a worker of its own.
    if machine.torchrun_rank() is not None:
        root = root.parent() or root
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
