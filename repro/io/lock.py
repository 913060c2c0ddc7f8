"""One harness at a time in a results folder: two would disturb each other's measurements."""

import errno
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from repro.io.untrusted import refuse_links

NAME = ".lock"  # in the results folder; git ignores it
# Errors of a file system that has no locks, such as some of clusters.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def held(results: Path) -> Iterator[None]:
    """Hold the lock of a results folder; a one-line ValueError if another process has it.

    The kernel releases the lock when this process ends, however it ends; child processes do not
    inherit it. The lock file stays, empty. On a file system without locks there is a warning and no
    protection.
    """
    results.mkdir(parents=True, exist_ok=True)
    path = results / NAME
    refuse_links(results, path)
    lock = FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"--results {results}: another `repro run` measures into it; wait until that has "
            "ended, or record into another folder with --results"
        ) from None
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"the file system of {results} has no locks ({error.strerror}): make sure that no "
            "other `repro run` measures into it",
            stacklevel=1,
        )
    try:
        yield
    finally:
        lock.release()
