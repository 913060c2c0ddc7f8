"""One harness at a time in a results folder: two would disturb each other's measurements."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from repro.io.untrusted import refuse_links

NAME = ".lock"  # in the results folder; git ignores it


@contextmanager
def held(results: Path) -> Iterator[None]:
    """Hold the lock of a results folder; a one-line ValueError if another process has it.

    The kernel releases the lock when this process ends, however it ends; child processes do not
    inherit it. The lock file stays, empty. Where the system has no locks, as on some clusters, the
    file names its owner instead.
    """
    results.mkdir(parents=True, exist_ok=True)
    path = results / NAME
    refuse_links(results, path)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"--results {results}: another `repro run` measures into it; wait until that has "
            "ended, or record into another folder with --results"
        ) from None
    except OSError as error:  # which lacks the path of the file
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield
    finally:
        lock.release()
