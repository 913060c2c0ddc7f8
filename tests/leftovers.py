"""What a program leaves behind when it ends: counted, not assumed."""

import time
from pathlib import Path

MARK = "GPIPE_TEST_MARK"


def processes(mark: str) -> list[int]:
    """Processes, no zombies, that inherited this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def segments() -> set[str]:
    """Names of all shared memory; semaphores are left out, for other programs of this machine come
    and go."""
    files = {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("sem.")}
    return files | {
        " ".join(line.split()[:2])
        for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    }


def none_within(mark: str, seconds: float) -> bool:
    """Whether all of them have ended by then."""
    end = time.monotonic() + seconds
    while processes(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
