"""Another user of this machine, who tries to reach what processes of ours have opened."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
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
for kind, place in json.load(sys.stdin):
    try:
        if kind == "tcp":
            socket.socket().connect(("127.0.0.1", place))
        else:
            os.listdir(place)
    except PermissionError:
        continue
    reached.append([kind, place])
print(json.dumps(reached))
"""


def ports(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    sockets = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(path.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{name}").read_text().splitlines()
    ]
    listening = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets]
    return {int(line[1].rpartition(":")[2], 16) for line in listening}


def reached(*places: tuple[str, int | str]) -> list[list[object]]:
    """Those of ("tcp", port) and ("folder", path) that the other user could open."""
    command = [sys.executable, "-I", "-c", _ATTEMPTS]
    done = subprocess.run(
        command, input=json.dumps(places), capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def others_reach(ports: set[int], folders: Iterable[Path]) -> list[list[object]]:
    """Those of our ports and folders that the other user could open.

    A socket that anybody on this machine can reach shows that the attempts work.
    """
    with socket.socket() as anybody:
        anybody.bind(("127.0.0.1", 0))
        anybody.listen()
        open_port = anybody.getsockname()[1]
        found = reached(
            ("tcp", open_port),
            *(("tcp", port) for port in ports),
            *(("folder", str(folder)) for folder in folders),
        )
    assert found[0] == ["tcp", open_port]
    return found[1:]
