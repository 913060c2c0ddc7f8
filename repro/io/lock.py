"""One harness at a time in a results folder: two would disturb each other's measurements."""

import errno
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from repro.io.untrusted import read_text, refuse_links, short

NAME = ".lock"  # in the results folder; git ignores it, since it names a host
# Errors of a file system that has no locks, such as some of clusters.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def held(results: Path, command: str) -> Iterator[None]:
    """Hold the lock of a results folder; a one-line ValueError names the process that has it.

    The kernel releases the lock when this process ends, however it ends; child processes do not
    inherit it. The lock file stays, empty. On a file system without locks there is a warning and no
    protection. `command` is shown to whoever finds the folder locked.
    """
    results.mkdir(parents=True, exist_ok=True)
    path = results / NAME
    refuse_links(results, path)
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = "another process"  # which has just taken it
        with suppress(ValueError):
            owner = short(read_text(path, 2**12), 300, quote=False) or owner
        raise ValueError(
            f"--results {results}: {owner} measures into it; wait until that has ended, or record "
            "into another folder with --results"
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"the file system of {results} has no locks ({error.strerror}): make sure that no "
            "other `repro run` measures into it",
            stacklevel=1,
        )
    since = datetime.now(UTC).isoformat(timespec="seconds")
    owner = f"process {os.getpid()} on {socket.gethostname()} (since {since}, `{command}`)"
    with suppress(OSError):  # a full disk is reported by what has to be recorded
        path.write_text(owner, encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            path.write_bytes(b"")
        lock.release()
