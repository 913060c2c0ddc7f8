"""Programs that tests start: none outlives its test, and what they leave behind is counted."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MARK = "GPIPE_TEST_MARK"
# Of a mapping: System V's, or a file that is not deleted; semaphores are no shared memory.
_NAMED = re.compile(r"/SYSV\w+|/dev/shm/(?!sem\.).*(?<! \(deleted\))$", re.MULTILINE)


def processes(mark: object) -> list[int]:
    """Processes, no zombies, that inherited this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def segments(mark: object) -> set[str]:
    """Shared memory of processes with this mark that has a name, and so could outlive them."""
    found = set()
    for pid in processes(mark):
        with suppress(OSError):  # it has just ended
            found |= set(_NAMED.findall(Path(f"/proc/{pid}/maps").read_text()))
    return found


def until(true: Callable[[], object], seconds: float) -> float:
    """Wait until a function is true; how long that took."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < seconds
        time.sleep(0.05)
    return time.monotonic() - start


def kill(mark: object) -> None:
    """Kill processes with this mark, and wait until none is left."""

    def none_is_left() -> bool:
        left = processes(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    until(none_is_left, 10)


@contextmanager
def program(
    mark: object, command: Sequence[object], *, env: Mapping[str, str] = os.environ, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A program in a session of its own, as in a terminal; in the end all its processes are killed.

    Without /proc, stages end by themselves when their launcher is gone.
    """
    with subprocess.Popen(
        [str(word) for word in command],
        env={**env, MARK: str(mark)},
        text=True,
        start_new_session=True,
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            kill(mark)
