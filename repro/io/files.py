"""Atomic writes: a kill or a full disk leaves the old file or the new one, never a part."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from repro.io.untrusted import inside, open_regular


def write(path: Path, data: bytes) -> None:
    """Write a file atomically; a file that already holds these bytes is not touched.

    Raises:
        OSError: with the path of the file, which the system's own error of a full disk lacks.
    """
    if _holds(path, data):
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
        with suppress(OSError):  # free its part of a full disk
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_inside(path: Path, folder: Path) -> None:
    """Check a path to write to, in a folder that others may have filled.

    Raises:
        ValueError: one line that names the path, where a link leads out of the folder.
    """
    try:
        inside(path, folder)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def fresh(path: Path) -> Path:
    """The path of a file that is written anew; a link in its place is removed, not followed."""
    path.unlink(missing_ok=True)
    return path


def as_json(value: object) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def remove_empty_logs(machine: Path) -> None:
    """Remove empty logs of workers under a machine's folder.

    Only for a process that holds the lock of the results: no other process may be writing there.
    """
    check_inside(machine, machine.parent)
    for logs in machine.glob("*/logs/*"):
        check_inside(logs, machine)
        if not any(path.is_file() and path.stat().st_size for path in logs.rglob("*")):
            shutil.rmtree(logs, ignore_errors=True)


def _holds(path: Path, data: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(data) + 1) == data
    except (OSError, ValueError):
        return False
