"""Temporary folders with their owner in the name, so that those of killed processes are removed."""

import atexit
import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PROC = Path("/proc")  # which macOS lacks


@contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder that only this user can open; removed at the end.

    Its name contains the host, this process and its start time. Folders of this user's processes
    that were killed on this host are removed first.
    """
    host = _host()
    for path in Path(tempfile.gettempdir()).glob(f"gpipe-{host}-*"):
        found = re.fullmatch(rf"gpipe-{host}-(\d+)-(\d+)-\w+", path.name)
        with suppress(FileNotFoundError):  # another launch is removing it, too
            if found and path.lstat().st_uid == os.getuid() and _started(int(found[1])) != found[2]:
                shutil.rmtree(path, ignore_errors=True)
    prefix = f"gpipe-{host}-{os.getpid()}-{_started(os.getpid())}-"
    if Path(tempfile.gettempdir()).name.startswith(prefix):
        prefix = "gpipe-"  # removed with the outer folder; a socket's path has 107 characters
    folder, owner = Path(tempfile.mkdtemp(prefix=prefix)), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a process that it has forked may end first
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    try:
        yield folder
    finally:
        remove()
        atexit.unregister(remove)


def _host() -> str:
    """A digest that differs between hosts, and between containers of a host."""
    processes = _PROC / "self/ns/pid"
    numbers = processes.readlink() if processes.is_symlink() else ""
    return hashlib.sha256(f"{socket.gethostname()} {numbers}".encode()).hexdigest()[:12]


def _started(process: int) -> str:
    """Start time of a process, in ticks of the kernel; empty if it has ended, 0 without `/proc`."""
    try:
        if not _PROC.is_dir():
            os.kill(process, 0)
            return "0"
        stat = (_PROC / f"{process}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
