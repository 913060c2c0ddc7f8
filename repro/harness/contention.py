"""The share of CPU time that other processes take while runs are measured.

It is the CPU seconds of the machine minus those of this process and of all processes that it
started. The load average would not do: it includes our own workers, and it lags by a minute.
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
        self._machine, self._own = _machine_seconds(), _own_seconds()
        self._container = _container_seconds()

    def share(self) -> float | None:
        """Average share of the usable cores, 0 to 1, that other processes took so far.

        None if less than `SHORTEST` seconds have passed, or if the system does not count CPU time.
        """
        seconds = time.monotonic() - self._began
        if seconds < SHORTEST or not self._machine:
            return None
        own = max(0.0, _own_seconds() - self._own)
        usable = machine.cores()
        # With a quota below the number of cores, others may use the rest without disturbing us.
        spare = max(0, len(machine.cpus()) - usable)
        taken = (_machine_seconds() - self._machine - own) / seconds - spare
        now = _container_seconds()
        if self._container is not None and now is not None:
            # The quota is shared with everything in the same container.
            taken = max(taken, (now - self._container - own) / seconds)
        return min(1.0, max(0.0, taken / usable))

    def share_soon(self) -> float | None:
        """The same, after a wait until `SHORTEST` seconds have passed."""
        time.sleep(max(0.0, SHORTEST + 0.01 - (time.monotonic() - self._began)))
        return self.share()


def is_busy(share: float | None) -> TypeGuard[float]:
    return share is not None and share > BUSY


def describe(share: float) -> str:
    cores = machine.cores()
    return f"other processes take {share * cores:.1f} of {cores} core{'s' if cores > 1 else ''}"


def warning(share: float | None) -> str:
    """That steps are disturbed now, for the user; empty on a machine that is not busy."""
    text = "this machine is busy: {}, so steps take longer and differ more; end them"
    return text.format(describe(share)) if is_busy(share) else ""


def _machine_seconds() -> float:
    """CPU seconds of all processes on the CPUs that we may use; 0 if the system does not say."""
    import psutil

    try:
        each = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error, NotImplementedError):
        return 0.0
    # Interrupts are left out, since messages between our own stages cause some. `steal` is time
    # of another virtual machine on the same hardware.
    kinds = ("user", "nice", "system", "steal")
    ours = [times for number, times in enumerate(each) if number in machine.cpus()]
    return sum(getattr(times, kind, 0.0) for times in ours for kind in kinds)


def _container_seconds() -> float | None:
    """CPU seconds of all processes of this container; None if it has no quota of its own."""
    has_quota = machine.of_container("cpu.max")[:1].isdigit()
    counts = machine.of_container("cpu.stat").split()
    return int(counts[counts.index("usage_usec") + 1]) / 1e6 if has_quota and counts else None


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
