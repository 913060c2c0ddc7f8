"""The machine that measures: which devices a scale uses here, and the facts recorded beside every result.

torch is imported only where a GPU driver is present, so listing and planning stay fast.
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

from repro.harness.spec import Scale, slug

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = (
    "torch",
    "torchvision",
    "timm",
    "datasets",
    "numpy",
    "pandas",
    "scipy",
    "pydantic",
    "wandb",
)


@dataclass(frozen=True)
class Machine:
    """The devices that a scale computes on.

    Attributes:
        device: "cpu" or "cuda".
        kind: what one device is, for example "AMD EPYC 7B13" or "NVIDIA H200".
        count: how many stages can compute at once: usable cores, or GPUs.
        transport: what carries messages unless a run says otherwise: "shm" (memory shared by the
            processes of a Linux host), "gloo" or "nccl".
        torch: version of torch.
    """

    device: str
    kind: str
    count: int
    transport: str
    torch: str

    @property
    def slug(self) -> str:
        """Folder name of its results: `amd-epyc-7b13-2c`, `8x-h200`."""
        if self.device == "cpu":
            return f"{slug(self.kind)}-{self.count}c"
        return f"{self.count}x-{slug(self.kind.removeprefix('NVIDIA ').removeprefix('AMD '))}"

    @property
    def identity(self) -> dict[str, str]:
        """What a timed run's id depends on besides its spec."""
        return {"device": self.kind, "transport": self.transport, "torch": self.torch}


def detect(scale: Scale) -> Machine:
    """The machine at a scale: smoke and laptop compute on the CPU, node and paper on GPUs.

    Raises ValueError (one line) where the scale needs a GPU and torch can use none.
    """
    torch = installed("torch")
    if scale in ("smoke", "laptop"):
        transport = "shm" if sys.platform == "linux" else "gloo"
        return Machine("cpu", cpu_name(), _limit(cores()), transport, torch)
    names = gpus()
    if not names:
        raise ValueError(
            f"scale = '{scale}' needs GPUs that torch can use and this machine has none: "
            "use --scale laptop or --scale smoke (`repro doctor` says what torch sees)"
        )
    return Machine("cuda", names[0], _limit(len(names)), "nccl", torch)


def default_scale() -> tuple[Scale, str]:
    """The scale when none is asked for, and why."""
    count = len(gpus())
    if count >= 2:
        return "node", f"{count} GPUs are usable"
    found = "one GPU is" if count else "no GPU is"
    return "laptop", f"{found} usable here, so stages compute on {cores()} CPU cores"


def cores() -> int:
    """CPU cores that this process may use: its affinity, cut by a container's quota."""
    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return usable if quota == "max" else max(1, min(usable, int(quota) // int(period)))
    except (OSError, ValueError):
        return usable


def oom_kills() -> int:
    """How many processes of this container the system has ended for want of memory so far; 0 where it does not say."""
    try:
        counts = dict(
            line.split() for line in Path("/sys/fs/cgroup/memory.events").read_text().splitlines()
        )
        return int(counts["oom_kill"])
    except (OSError, ValueError, KeyError):
        return 0


@cache
def gpus() -> tuple[str, ...]:
    """Names of the GPUs that torch can use; torch is asked only where a driver is present."""
    if not (
        Path("/proc/driver/nvidia").exists()
        or Path("/dev/kfd").exists()
        or shutil.which("nvidia-smi")
    ):
        return ()
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def cpu_name() -> str:
    """The processor's name without marketing: `AMD EPYC 7B13`."""
    name = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1] for line in lines if line.startswith("model name")), "")
    except OSError:
        if shutil.which("sysctl"):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    name = re.sub(r"\(R\)|\(TM\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", "", name)
    return " ".join(name.split()) or platform.machine() or "cpu"


def installed(package: str) -> str:
    """Version of an installed package, without importing it; empty when it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


_RESULTS = (":!results", ":!plots")  # what is being measured changes these, and no number


@cache
def commit() -> str:
    """Short commit of this code, `+dirty` when tracked files but results were changed, `unknown` outside git."""
    short = _git("rev-parse", "--short=10", "HEAD")
    if not short:
        return "unknown"
    return short + (
        "+dirty"
        if _git("status", "--porcelain", "--untracked-files=no", "--", ".", *_RESULTS)
        else ""
    )


def environment(machine: Machine) -> dict[str, object]:
    """What is recorded in env.json: versions, hardware and commit; no paths, no host name."""
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
    """This process's rank when torchrun started it, else None."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def _limit(here: int) -> int:
    """Devices in reach: those here, or under torchrun those of all its ranks."""
    if torchrun_rank() is None:
        return here
    world = int(os.environ["WORLD_SIZE"])
    nodes = max(1, world // int(os.environ.get("LOCAL_WORLD_SIZE", str(world))))
    return min(world, here * nodes)


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
