"""One harness at a time in a results folder: two would disturb each other's times and record a round twice."""

import errno
import fcntl
import getpass
import json
import os
import socket
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

_LONGEST = 2**12  # bytes of what it says
NAME = ".lock"  # beside the machines' folders; git ignores it, since it says who and where


class Lock:
    """Of a results folder, which is made if missing; `command` tells others what is going on.

    The kernel lets go of the lock when this process ends, however it ends; worker processes do not
    inherit it. The file stays, empty. On a file system without locks there is a warning and no
    protection.
    """

    def __init__(self, results: Path, command: str) -> None:
        self._results, self._command = results, command
        self._files: list[IO[bytes]] = []

    def take(self) -> None:
        """Take the lock; again, where the folder was deleted or moved since, and its file with it.

        Raises ValueError (one line) that names the owner where another process holds it.
        """
        self._results.mkdir(parents=True, exist_ok=True)
        file = _opened(self._results / NAME)
        here = os.fstat(file.fileno())
        if any(os.path.samestat(here, os.fstat(own.fileno())) for own in self._files):
            file.close()
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise ValueError(
                    f"--results {self._results}: {_owner(file)} measures into it; wait until that "
                    "has ended, or record into another folder with --results"
                ) from None
        except OSError as error:
            warnings.warn(
                f"{self._results} lies on a file system without locks ({error.strerror}): "
                "make sure that no other `repro run` measures into it",
                stacklevel=1,
            )
        self._files.append(file)
        with suppress(OSError):  # a full disk is told by what has to be recorded
            file.truncate(0)
            file.write(json.dumps(_me(self._command)).encode())

    def release(self) -> None:
        """Let go of it."""
        for file in self._files:
            with suppress(OSError):
                file.truncate(0)
            file.close()


@contextmanager
def held(results: Path, command: str) -> Iterator[Lock]:
    """Hold the lock of a results folder; see `Lock`."""
    lock = Lock(results, command)
    try:
        lock.take()
        yield lock
    finally:
        lock.release()


def _opened(path: Path) -> IO[bytes]:
    """The lock's own file; a link would lead to somebody else's, which would be overwritten."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ValueError(
            f"{path}: it is a link, and the lock must be a file of its own; remove it"
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path}: it is no regular file, as the lock must be; remove it")
    return os.fdopen(descriptor, "ab+", buffering=0)


def _me(command: str) -> dict[str, str | int]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        user = str(os.getuid())
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "user": user,
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": since,
        "command": command,
    }


def _owner(file: IO[bytes]) -> str:
    """Who holds the lock, as far as its file says."""
    file.seek(0)
    try:
        owner = json.loads(file.read(_LONGEST))
        text = "{user} (process {process} on {host}, since {since}, `{command}`)".format(**owner)
        return " ".join(text.split())[:300]
    except (ValueError, KeyError, TypeError, OSError, RecursionError):  # just taken
        return "another process"
