"""Another user of this machine, who tries to reach what processes of ours have opened."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

as_root = pytest.mark.skipif(
    os.getuid() != 0 or sys.platform != "linux",
    reason="only root can act as another user, and only Linux tells who listens",
)

# What the other user does. Python itself starts as root, since it may lie where nobody else can
# read.
_ATTEMPTS = """
import json, os, socket, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
reached = []
for place in json.load(sys.stdin):
    try:
        if isinstance(place, int):
            socket.socket().connect(("127.0.0.1", place))
        else:
            os.listdir(place)
    except PermissionError:
        continue
    reached.append(place)
print(json.dumps(reached))
"""


def listening(pid: int) -> set[str]:
    """Where a process listens for TCP, as `<address>:<port>` in the kernel's hexadecimal."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(str(path.readlink()))
    files = [Path("/proc/net") / name for name in ("tcp", "tcp6")]
    lines = [line.split() for file in files for line in file.read_text().splitlines()[1:]]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


def others_reach(listening: Iterable[str], folders: Iterable[Path]) -> list[int | str]:
    """Those of our ports and folders that the other user could open.

    A socket that anybody on this machine can reach shows that the attempts work.
    """
    ports = [int(place.rpartition(":")[2], 16) for place in listening]
    with socket.socket() as anybody:
        anybody.bind(("127.0.0.1", 0))
        anybody.listen()
        open_port = anybody.getsockname()[1]
        command = [sys.executable, "-I", "-c", _ATTEMPTS]
        places = json.dumps([open_port, *ports, *map(str, folders)])
        done = subprocess.run(
            command, input=places, capture_output=True, text=True, check=True, timeout=60
        )
    found = json.loads(done.stdout)
    assert found[0] == open_port
    return found[1:]
