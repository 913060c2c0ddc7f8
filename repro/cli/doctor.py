"""`repro doctor`: this machine's hardware and software, and what can be measured on it.

A GPU that the driver knows and torch cannot use is an error, with a reason and a remedy: otherwise
stages would compute on the CPU, and nobody would know why.
"""

import os
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from repro.cli.answers import tell
from repro.cli.options import parse
from repro.harness import contention, machine, wandb_mirror
from repro.harness.contention import CpuShare
from repro.harness.text import size

_PACKAGES = ("torch", "torchvision", "timm", "datasets", "wandb")
_REINSTALL = "`.venv/bin/uv pip install --torch-backend=auto --reinstall torch torchvision`"


@dataclass(frozen=True)
class DoctorOptions:
    """Show this machine's hardware and software, and what can be measured on it."""

    results: Path = Path("results")
    """where measurements would be recorded"""


@dataclass(frozen=True)
class Torch:
    """What torch was built for and what it can use."""

    cuda: str = ""  # version of CUDA that it was built with; empty for a CPU build
    gpus: tuple[str, ...] = ()
    warning: str = ""  # its own, of GPUs that it cannot use
    backends: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its GPUs and its version; else empty."""

    gpus: tuple[str, ...] = ()
    version: str = ""


def trouble_here() -> str:
    """`gpu_trouble` of this machine; torch is imported only if the driver lists a GPU."""
    driver = the_driver()
    return gpu_trouble(driver, the_torch()) if driver.gpus else ""


def gpu_trouble(driver: Driver, torch: Torch) -> str:
    """Why torch cannot use the driver's GPUs and what to do, as one line; empty if it can."""
    if torch.gpus and "not compatible" in torch.warning:
        return f"{torch.warning}: install another build, {_REINSTALL}"
    if torch.gpus or not driver.gpus:
        return ""
    fact = f"{len(driver.gpus)} x {driver.gpus[0]} here, but torch cannot use a GPU"
    if not torch.cuda:
        return f"{fact}: this torch is a build without CUDA; install one with it, {_REINSTALL}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return (
            f"{fact}: CUDA_VISIBLE_DEVICES={visible!r} hides them; unset it, or name some, such "
            "as 0,1"
        )
    return (
        f"{fact}: {torch.warning or 'torch gives no reason'} (driver {driver.version}, torch built "
        f"for CUDA {torch.cuda}); update the driver and restart the machine or container, or "
        f"install a build that fits the driver, {_REINSTALL}"
    )


def the_torch() -> Torch:
    if not machine.installed("torch"):
        return Torch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
        import torch.distributed as dist

        usable = torch.cuda.is_available()
        count = torch.cuda.device_count() if usable else 0
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    said = [" ".join(str(each.message).split()) for each in caught if each.category is UserWarning]
    return Torch(
        cuda=torch.version.cuda or "",
        gpus=tuple(f"{g.name} ({size(g.total_memory)}, sm_{g.major}{g.minor})" for g in gpus),
        warning=said[-1][:300] if said else "",
        backends={
            "gloo": dist.is_gloo_available(),
            "nccl": dist.is_nccl_available() and usable,
            "mps": torch.backends.mps.is_available(),
        },
    )


def the_driver() -> Driver:
    query = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return Driver()
    rows = [line.split(", ", 1) for line in said.splitlines() if ", " in line]
    return Driver(tuple(name for _, name in rows), rows[0][0] if rows else "")


def memory() -> tuple[float, float]:
    """Bytes of memory, and free ones, that this container may use."""
    import psutil

    here, limit = psutil.virtual_memory(), float("inf")
    if (text := machine.of_container("memory.max").strip()).isdigit():
        limit = float(text)
    return min(here.total, limit), min(here.available, limit)


def examine(results: Path, load: float | None) -> tuple[dict[str, Any], list[str]]:
    """What is shown by topic, and problems, each a line that says what to do.

    `load` is the share of the usable cores that other processes take; None where it is unknown.
    """
    torch, driver, cores = the_torch(), the_driver(), machine.cores()
    packages = {name: machine.installed(name) or None for name in _PACKAGES}
    total, free = memory()
    places = (results.absolute(), *results.absolute().parents)
    folder = next(path for path in places if path.exists())
    problems = [gpu_trouble(driver, torch)]
    if missing := [name for name, version in packages.items() if not version]:
        problems.append(f"{', '.join(missing)} is not installed: run `./run_all.sh --setup-only`")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        problems.append(f"{results} cannot be written: choose another folder with --results")
    scale, why = machine.default_scale()
    key = "set" if wandb_mirror.has_key() else "not set"
    facts = {
        "processor": f"{machine.cpu_name()}: {cores} usable cores of {os.cpu_count()}",
        "load": "not known here" if load is None else contention.describe(load),
        "memory": f"{size(free)} free of {size(total)}",
        "disk": f"{size(shutil.disk_usage(folder).free)} free at {results}",
        "python": platform.python_version(),
        "packages": packages,
        "torch": {"built for CUDA": torch.cuda or None, **torch.backends},
        "GPUs, by torch": ", ".join(torch.gpus) or "none",
        f"GPUs, by driver {driver.version}": ", ".join(driver.gpus) or "none",
        "W&B": f"{wandb_mirror.default_mode()} unless --wandb says otherwise; API key {key}",
        "measures": f"scale {scale} when none is asked for: {why}; K up to the number of devices",
    }
    return facts, [line for line in problems if line]


def main(arguments: list[str]) -> int:
    options = parse(DoctorOptions, arguments, "repro doctor")
    load = CpuShare().share_soon()
    facts, errors = examine(options.results, load)
    tell(facts)
    for line in errors:
        print(f"ERROR: {line}")
    if text := contention.warning(load):
        print(f"WARNING: {text} first")
    if not errors:
        print("Next: `.venv/bin/repro list`, or `./run_all.sh --scale smoke`.")
    return 1 if errors else 0
