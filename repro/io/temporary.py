"""Temporary folders, which go with the process that has made them."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder that only this user can open; removed at the end, also of the program.

    That of a killed process stays until the system clears its temporary files.
    """
    folder, owner = Path(tempfile.mkdtemp(prefix="gpipe-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a process that it has forked may end first
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    try:
        yield folder
    finally:
        remove()
        atexit.unregister(remove)
