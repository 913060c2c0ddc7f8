"""Two hosts: network namespaces with addresses of their own where the system allows, else two
agents on loopback."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from leftovers import kill, processes, program, until

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2")
_ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class Host:
    """One of them; `apart` says whether it has an address of its own."""

    def __init__(
        self, name: str, folder: Path, endpoint: str, ends: ExitStack, *, apart: bool
    ) -> None:
        self.name, self.endpoint, self.apart, self._ends = name, endpoint, apart, ends
        self.agent: subprocess.Popen[str] | None = None
        self.log, self._hosts = folder / f"{name}.log", folder / "hosts"

    def torchrun(self, arguments: list[str]) -> None:
        """Start torchrun's agent here with two ranks; its output goes into a file."""
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "t"]
        command = [*TORCHRUN, *rendezvous, *arguments]
        environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        environment["GLOO_SOCKET_IFNAME"] = "cable" if self.apart else "lo"
        if self.apart:
            enter = ["sh", "-c", _ENTER, "sh", self.name, str(self._hosts)]
            command = ["ip", "netns", "exec", self.name, "unshare", "--uts", *enter, *command]
        with self.log.open("w") as out:
            self.agent = self._ends.enter_context(
                program(self.name, command, env=os.environ | environment, stdout=out, stderr=out)
            )
        if not self.apart:  # on one address the agent that is ready first holds the store
            until(self._has_store, 60)

    def _has_store(self) -> bool:
        address, port = self.endpoint.split(":")
        with socket.socket() as probe:
            return probe.connect_ex((address, int(port))) == 0

    def has_ranks(self) -> bool:
        """Whether any of them still runs."""
        assert self.agent is not None
        return bool({*processes(self.name)} - {self.agent.pid})

    def cut(self) -> None:
        """Nothing reaches this host any more; without an address of its own it is gone."""
        if self.apart:
            _ip("-n", self.name, "link", "set", "cable", "down")
        else:
            kill(self.name)


@contextmanager
def two(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Both hosts, the first of which holds the rendezvous."""
    first, second = names = [f"gpipe{os.getpid()}{letter}" for letter in "ab"]
    table = f"127.0.0.1 localhost\n10.77.0.1 {first}\n10.77.0.2 {second}\n"
    (folder / "hosts").write_text(table)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    try:
        apart = _linked(first, second)
        endpoint = "10.77.0.1:29511" if apart else endpoint
        with ExitStack() as ends:
            both = [Host(name, folder, endpoint, ends, apart=apart) for name in names]
            yield tuple(both)  # pyright: ignore[reportReturnType]
    finally:
        for name in names if shutil.which("ip") else ():
            _ip("netns", "del", name)


def _linked(first: str, second: str) -> bool:
    """Make both namespaces and the cable between them; False where the system does not allow it."""
    cable = f"link add cable netns {first} type veth peer name cable netns {second}"
    steps = [f"netns add {first}", f"netns add {second}", cable]
    for number, name in enumerate((first, second), start=1):
        steps.append(f"-n {name} addr add 10.77.0.{number}/24 dev cable")
        steps += [f"-n {name} link set {device} up" for device in ("cable", "lo")]
    return bool(shutil.which("ip")) and all(_ip(*step.split()) for step in steps)


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0
