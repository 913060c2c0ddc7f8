"""What a program leaves behind when it ends: counted, not assumed."""

import re
import time
from contextlib import suppress
from pathlib import Path

MARK = "GPIPE_TEST_MARK"
# Of a mapping: System V's, or a file that is not deleted; semaphores are no shared memory.
_NAMED = re.compile(r"/SYSV\w+|/dev/shm/(?!sem\.).*(?<! \(deleted\))$", re.MULTILINE)


def processes(mark: str) -> list[int]:
    """Processes, no zombies, that inherited this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def segments(mark: str) -> set[str]:
    """Shared memory of processes with this mark that has a name, and so could outlive them."""
    found = set()
    for pid in processes(mark):
        with suppress(OSError):  # it has just ended
            found |= set(_NAMED.findall(Path(f"/proc/{pid}/maps").read_text()))
    return found


def none_within(mark: str, seconds: float) -> bool:
    """Whether all of them have ended by then."""
    end = time.monotonic() + seconds
    while processes(mark) and time.monotonic() < end:
        time.sleep(0.1)
    return not processes(mark)
