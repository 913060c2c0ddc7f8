"""This machine: the devices that a scale uses, and the facts recorded with every result.

torch is imported only if a GPU driver is present, so that listing and planning stay fast.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from repro.harness.spec import ON_CPU, Scale, slug
from repro.harness.text import size

_ROOT = Path(__file__).resolve().parents[2]
# A GPU that most of Table 1's capped stages can share; eight of 8 GB need a bit more.
LARGE_GPU = 60 * 10**9
_NO_PEERS = "nccl-p2p-off"  # NCCL through host memory, as NCCL_P2P_DISABLE asks for
TF32 = "TF32"  # of matrix products of timed runs on GPUs; sums and storage are float32
# fmt: off
_PACKAGES = (
    "torch", "torchvision", "timm", "datasets", "numpy", "pandas", "scipy", "pydantic", "wandb",
)
# fmt: on


@dataclass(frozen=True)
class Machine:
    """The devices that a scale computes on."""

    device: str  # "cpu" or "cuda"
    kind: str  # what one device is, for example "AMD EPYC 7B13" or "NVIDIA H200"
    count: int  # how many stages can compute at once: usable cores, or GPUs
    # The default carrier of messages: "shm" (memory that processes of a Linux host share), "gloo"
    # (also for stages that share a GPU), "nccl", or `_NO_PEERS` where NCCL_P2P_DISABLE is set.
    transport: str
    torch: str  # its version
    precision: str = ""  # of matrix products in timed runs; empty for plain float32
    memory: int = 0  # bytes of one GPU; 0 for a CPU
    links: str = ""  # of several hosts, "2 hosts, ib0": they and the network between them

    @property
    def slug(self) -> str:
        """Folder name of its results: `amd-epyc-7b13-2c`, `8x-h200`, `8x-h200-p2p-off`."""
        links = f"-{slug(self.links)}" if self.links else ""
        if self.device == "cpu":
            return f"{slug(self.kind)}-{self.count}c{links}"
        kind = slug(self.kind.removeprefix("NVIDIA ").removeprefix("AMD "))
        # What is measured without peer-to-peer never mixes with other results of the machine.
        peers = "-p2p-off" if self.transport == _NO_PEERS else ""
        return f"{self.count}x-{kind}{peers}{links}"

    @property
    def identity(self) -> dict[str, str]:
        """The facts that the id of a timed run depends on, besides its spec."""
        facts = {"device": self.kind, "transport": self.transport, "torch": self.torch}
        others = {"precision": self.precision, "links": self.links}
        return facts | {name: value for name, value in others.items() if value}


def detect(scale: Scale) -> Machine:
    """The devices of a scale: those of `ON_CPU` compute on the CPU, the others on GPUs."""
    torch, hosts = installed("torch"), _hosts()
    links = f"{hosts} hosts, {_network()}" if hosts > 1 else ""
    if scale in ON_CPU:
        transport = "shm" if sys.platform == "linux" and hosts == 1 else "gloo"
        count = _limit(cores(), hosts)
        return Machine("cpu", cpu_name(), count, transport, torch, links=links)
    names = gpus()
    if not names:
        raise ValueError(
            f"scale = '{scale}' needs GPUs that torch can use and this machine has none: "
            "use --scale smoke, laptop or overnight (`repro doctor` shows what torch can use)"
        )
    count = _limit(len(names), hosts)
    transport = "nccl" if count > 1 else "gloo"
    if transport == "nccl" and os.environ.get("NCCL_P2P_DISABLE", "") not in ("", "0"):
        transport = _NO_PEERS
    return Machine("cuda", names[0], count, transport, torch, TF32, gpu_memory(), links)


def default_scale() -> tuple[Scale, str]:
    count = len(gpus())
    if count >= 2:
        return "node", f"{count} GPUs are usable"
    on_cpu = f"stages compute on {cores()} CPU cores"
    if not count:
        return "laptop", f"no GPU is usable here, so {on_cpu}"
    memory = gpu_memory()
    if memory >= LARGE_GPU:
        return "gpu", f"one GPU of {size(memory)} is usable, which stages can share"
    return "laptop", f"the one usable GPU has less than {size(LARGE_GPU)}, so {on_cpu}"


def cores() -> int:
    """CPU cores that this process may use: its affinity, limited by a container's quota."""
    is_linux = hasattr(os, "sched_getaffinity")
    usable = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    quota, _, period = of_container("cpu.max").partition(" ")
    return max(1, min(usable, int(quota) // int(period))) if quota.isdigit() else usable


def oom_kills() -> int:
    """Processes of this container that the system has killed for lack of memory; 0 if unknown."""
    events = of_container("memory.events").split()
    return int(events[events.index("oom_kill") + 1]) if "oom_kill" in events else 0


def of_container(name: str) -> str:
    """A limit or a count of this container, such as "memory.max"; empty where there is none."""
    return _text(Path("/sys/fs/cgroup") / name)


def memory() -> tuple[float, float]:
    """Bytes of memory, and free ones, that this container may use."""
    import psutil

    here, limit = psutil.virtual_memory(), float("inf")
    if (text := of_container("memory.max").strip()).isdigit():
        limit = float(text)
    return min(here.total, limit), min(here.available, limit)


@cache
def gpus() -> tuple[str, ...]:
    """Names of the GPUs that torch can use; torch is asked only if a driver is present."""
    drivers = (Path("/proc/driver/nvidia"), Path("/dev/kfd"))
    if not any(path.exists() for path in drivers) and not shutil.which("nvidia-smi"):
        return ()
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(torch.cuda.get_device_name(i) for i in range(count))


def gpu_memory() -> int:
    import torch

    usable = torch.cuda.is_available()
    return torch.cuda.get_device_properties(0).total_memory if usable else 0


def cpu_name() -> str:
    """The processor's name without trademarks and core counts: `AMD EPYC 7B13`."""
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    name = next((line.split(":", 1)[1] for line in lines if line.startswith("model name")), "")
    if not lines:
        name = _output("sysctl", "-n", "machdep.cpu.brand_string")
    name = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", "", name)
    return " ".join(name.split()) or platform.machine() or "cpu"


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def commit() -> str:
    """Short commit of this code; `+dirty` after it if code was changed, `unknown` outside git."""
    git = ("git", "-C", str(_ROOT))
    short = _output(*git, "rev-parse", "--short=10", "HEAD")
    if not short:
        return "unknown"
    # Results and plots change no number that is measured.
    code = (".", ":!results", ":!plots")
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no", "--", *code)
    return f"{short}+dirty" if changed else short


@cache
def environment(machine: Machine) -> dict[str, Any]:
    """What is recorded of a machine: versions, hardware, commit; no paths and no host name."""
    return {
        **asdict(machine),
        "python": platform.python_version(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": cores(),
        "gpus": list(gpus()),
        "packages": {name: installed(name) for name in _PACKAGES},
        "commit": commit().removesuffix("+dirty"),
        "dirty": commit().endswith("+dirty"),
    }


def torchrun_rank() -> int | None:
    """This process's rank among several that torchrun started, else None."""
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"  # as in a pod of a job of one process
    return int(os.environ["RANK"]) if "RANK" in os.environ and not is_alone else None


def _hosts() -> int:
    """Hosts of the ranks that torchrun started, or this one."""
    if torchrun_rank() is None:
        return 1
    from repro.gpipe.runtime.group import torchrun

    return torchrun().hosts


def _network() -> str:
    """The network that gloo and NCCL use between hosts."""
    chosen = map(os.environ.get, ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"))
    return ", ".join(dict.fromkeys(filter(None, chosen))) or "default network"


def _limit(local: int, hosts: int) -> int:
    """Usable devices: those of this host, or under torchrun one per rank."""
    return local if torchrun_rank() is None else min(int(os.environ["WORLD_SIZE"]), local * hosts)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _output(*command: str) -> str:
    """What a program prints; empty where there is none, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
