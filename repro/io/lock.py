"""One harness at a time in a results folder: two would disturb each other's measurements."""

import errno
import getpass
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from repro.io.untrusted import read_text

NAME = ".lock"  # beside the machines' folders; git ignores it, since it names a user and a host
_LARGEST = 2**12  # bytes of the description of the owner
# Errors of a file system that has no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def held(results: Path, command: str) -> Iterator[None]:
    """Hold the lock of a results folder, which is made if it is missing.

    The kernel releases the lock when this process ends, however it ends; child processes do not
    inherit it. The lock file stays, empty. On a file system without locks there is a warning and no
    protection.

    Args:
        results: the folder.
        command: the command that runs, shown to whoever finds the folder locked.

    Raises:
        ValueError: one line: the process that holds the lock, or what is wrong with its file.
    """
    results.mkdir(parents=True, exist_ok=True)
    path = results / NAME
    # filelock refuses links too, but would take a pipe.
    if path.is_symlink():
        raise ValueError(f"{path}: it is a link, and the lock must be a file; remove it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: it is no regular file, as the lock must be; remove it")
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"--results {results}: {_owner(path)} measures into it; wait until that has ended, or "
            "record into another folder with --results"
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"{results} lies on a file system without locks ({error.strerror}): make sure that no "
            "other `repro run` measures into it",
            stacklevel=1,
        )
    with suppress(OSError):  # a full disk is reported by what has to be recorded
        path.write_text(json.dumps(_description(command)), encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):
            path.write_bytes(b"")
        lock.release()


def _description(command: str) -> dict[str, str | int]:
    """This process, for whoever finds the folder locked."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    return {
        "user": user,
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
    }


def _owner(path: Path) -> str:
    """The process that holds the lock, as far as its file says."""
    try:
        owner = json.loads(read_text(path, _LARGEST))
        text = "{user} (process {process} on {host}, since {since}, `{command}`)".format(**owner)
    except (ValueError, KeyError, TypeError, RecursionError):  # the lock has just been taken
        return "another process"
    return " ".join(text.split())[:300]
