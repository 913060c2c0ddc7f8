"""Atomic writes: a kill or a full disk leaves the old file or the new one, never a part."""

import os
from contextlib import suppress
from pathlib import Path

from repro.io.untrusted import read_bytes


def write(path: Path, data: bytes) -> None:
    """Write a file atomically; a file with the same bytes is not touched.

    Raises:
        OSError: with the path of the file, which the system's own error of a full disk lacks.
    """
    with suppress(ValueError):
        if read_bytes(path, len(data)) == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # frees space on a full disk
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
