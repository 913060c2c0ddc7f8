"""Files written so that a kill or a full disk at any moment leaves the old one or the new one, never a part."""

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from repro.io.untrusted import open_regular

_TEMPORARY = re.compile(r"\..+\.(json|jsonl|parquet)\.\d+")


def write(path: Path, data: bytes) -> None:
    """Write beside, then rename; a file that holds these bytes already is left alone.

    Raises OSError that names the file, also where the system's own error does not (a full disk).
    """
    if _holds(path, data):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):  # the part that was written takes room on a full disk
            beside.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def as_json(value: object) -> bytes:
    """JSON that people can read."""
    return (json.dumps(value, indent=1) + "\n").encode()


def remove_leftovers(machine: Path) -> None:
    """Remove what killed processes were about to write under a machine's folder, and workers' logs without a word.

    Only for who holds the lock of the results: no living process may be writing there.
    """
    for path in machine.rglob(".*"):
        if _TEMPORARY.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    for logs in machine.glob("*/logs/*"):
        if not any(path.is_file() and path.stat().st_size for path in logs.rglob("*")):
            shutil.rmtree(logs, ignore_errors=True)


def _holds(path: Path, data: bytes) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(len(data) + 1) == data
    except (OSError, ValueError):
        return False
