"""Two hosts: network namespaces with addresses of their own where the system allows, else two
agents on loopback."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2")
_ENTER = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'


class Host:
    """One of them; `apart` says whether it has an address of its own."""

    def __init__(self, name: str, endpoint: str, hosts: Path | None) -> None:
        self.name, self.endpoint, self.hosts = name, endpoint, hosts
        self.agent: subprocess.Popen[str] | None = None
        self.log = Path()

    @property
    def apart(self) -> bool:
        return self.hosts is not None

    def torchrun(self, arguments: list[str], folder: Path) -> None:
        """Start torchrun's agent here with two ranks; its output goes into a file."""
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", self.endpoint, "--rdzv-id", "t"]
        command = [*TORCHRUN, *rendezvous, *arguments]
        environment = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        environment["GLOO_SOCKET_IFNAME"] = "cable" if self.apart else "lo"
        if self.hosts is not None:
            enter = ["sh", "-c", _ENTER, "sh", self.name, str(self.hosts)]
            command = ["ip", "netns", "exec", self.name, "unshare", "--uts", *enter, *command]
        self.log = folder / f"{self.name}.log"
        with self.log.open("w") as out:
            self.agent = subprocess.Popen(
                command,
                env=os.environ | environment,
                stdout=out,
                stderr=out,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        """End the agent and its ranks."""
        if self.agent is not None:
            subprocess.run(["pkill", "-KILL", "-s", str(self.agent.pid)], check=False)
            self.agent.wait()

    def cut(self) -> None:
        """Nothing reaches this host any more; without an address of its own it is gone
        altogether."""
        if self.apart:
            _ip("-n", self.name, "link", "set", "cable", "down")
        else:
            self.kill()


@contextmanager
def two(folder: Path) -> Iterator[tuple[Host, Host]]:
    """Both hosts, the first of which holds the rendezvous."""
    names = [f"gpipe{os.getpid()}{letter}" for letter in "ab"]
    hosts = folder / "hosts"
    hosts.write_text(f"127.0.0.1 localhost\n10.77.0.1 {names[0]}\n10.77.0.2 {names[1]}\n")
    apart = _linked(names)
    endpoint = "10.77.0.1:29511" if apart else f"127.0.0.1:{_free_port()}"
    both = (
        Host(names[0], endpoint, hosts if apart else None),
        Host(names[1], endpoint, hosts if apart else None),
    )
    try:
        yield both
    finally:
        for host in both:
            host.kill()
        for name in names if apart else ():
            _ip("netns", "del", name)


def _linked(names: list[str]) -> bool:
    """Make both namespaces and the cable between them; False where the system does not allow it."""
    if not shutil.which("ip") or not all(_ip("netns", "add", name) for name in names):
        return False
    first, second = names
    cable = f"link add cable netns {first} type veth peer name cable netns {second}"
    steps = [cable.split()]
    for number, name in enumerate(names, start=1):
        steps.append(["-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable"])
        steps += [["-n", name, "link", "set", device, "up"] for device in ("cable", "lo")]
    if all(_ip(*step) for step in steps):
        return True
    for name in names:
        _ip("netns", "del", name)
    return False


def _ip(*arguments: str) -> bool:
    return subprocess.run(["ip", *arguments], capture_output=True, check=False).returncode == 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
