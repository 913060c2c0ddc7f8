"""`repro doctor`: this machine's hardware and software, and what can be measured on it.

A GPU that the driver knows and torch cannot use is an error, with a reason and a remedy: otherwise
stages would compute on the CPU, and nobody would know why.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from repro.cli.options import parse
from repro.harness import contention, machine, wandb_mirror
from repro.harness.contention import CpuShare
from repro.harness.text import size

GIB = 2**30
_PACKAGES = ("torch", "torchvision", "timm", "datasets", "wandb")
# What is simulated or emulated needs no GPU.
_ON_GPUS = "repro run table2 table3 --scale node --only fidelity=measured"
_REINSTALL = "`.venv/bin/uv pip install --torch-backend=auto --reinstall torch torchvision`"


@dataclass(frozen=True)
class DoctorOptions:
    """Show this machine's hardware and software, and what can be measured on it."""

    results: Path = Path("results")
    """where measurements would be recorded"""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """run small pipelines for half a minute: training, memory, overhead, a failure"""


@dataclass(frozen=True)
class Device:
    """A GPU as torch sees it: its compute capability, for example (9, 0), and its memory."""

    name: str
    capability: tuple[int, int]
    nbytes: float


@dataclass(frozen=True)
class Torch:
    """What torch was built for and what it can use.

    Attributes:
        cuda: version of CUDA it was built with; empty for a CPU build.
        compiled: architectures it was compiled for, such as "sm_90".
        devices: the GPUs it can use.
        error: its warning when it could not use the GPUs.
        threads: of one process.
        backends: name -> whether it is available.
    """

    cuda: str = ""
    compiled: tuple[str, ...] = ()
    devices: tuple[Device, ...] = ()
    error: str = ""
    threads: int = 1
    backends: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver: its GPUs, its version and the newest CUDA it supports; else empty."""

    gpus: tuple[str, ...] = ()
    version: str = ""
    cuda: str = ""


def trouble_here() -> str:
    """`gpu_trouble` of this machine; torch is imported only if the driver lists a GPU."""
    driver = the_driver()
    if not driver.gpus:
        return ""
    return gpu_trouble(driver, the_torch(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def gpu_trouble(driver: Driver, torch: Torch, visible: str | None = None) -> str:
    """Why torch cannot use the driver's GPUs and what to do, as one line; empty if it can.

    Args:
        driver: what the driver knows.
        torch: what torch knows.
        visible: the value of CUDA_VISIBLE_DEVICES; None if it is not set.
    """
    for gpu in torch.devices:
        if not _compiled_for(gpu.capability, torch.compiled):
            return (
                f"{gpu.name} ({_sm(gpu)}) is not among the GPUs this torch is built for "
                f"({', '.join(torch.compiled)}): install a build for older GPUs, {_REINSTALL}, or "
                "an older torch (2.11 or later)"
            )
    if torch.devices or not driver.gpus:
        return ""
    fact = f"{len(driver.gpus)} x {driver.gpus[0]} here, but torch cannot use a GPU"
    if not torch.cuda:
        return f"{fact}: this torch is a build without CUDA; install one with it, {_REINSTALL}"
    if visible is not None and visible.strip() in ("", "-1"):
        return (
            f"{fact}: CUDA_VISIBLE_DEVICES={visible!r} hides them; unset it, or name some, such "
            "as 0,1"
        )
    if driver.cuda and _major(driver.cuda) < _major(torch.cuda):
        return (
            f"{fact}: driver {driver.version} supports CUDA up to {driver.cuda} and this torch is "
            f"built for {torch.cuda}; update the driver, or install a build that fits it, "
            f"{_REINSTALL}"
        )
    reason = torch.error or "torch gives no reason"
    return f"{fact}: {reason}; restart the machine or container, then try {_REINSTALL}"


def _major(version: str) -> int:
    return int(version.split(".")[0])


def _sm(gpu: Device) -> str:
    return f"sm_{gpu.capability[0]}{gpu.capability[1]}"


def _compiled_for(capability: tuple[int, int], compiled: tuple[str, ...]) -> bool:
    """Whether code for one of these architectures runs on a GPU.

    Binary code (sm_*) runs on later GPUs of its generation, intermediate code (compute_*) on any
    later GPU.
    """
    for architecture in compiled:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if match is None:
            continue
        version = (int(match[2]), int(match[3]))
        same_generation = version[0] == capability[0]
        if version <= capability and (match[1] == "compute" or same_generation):
            return True
    return not compiled


def the_torch() -> Torch:
    """What the installed torch can use."""
    if not machine.installed("torch"):
        return Torch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch
        import torch.distributed as dist

        usable = torch.cuda.is_available()
    count = torch.cuda.device_count() if usable else 0
    gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    return Torch(
        cuda=torch.version.cuda or "",
        compiled=tuple(torch.cuda.get_arch_list()) if usable else (),
        devices=tuple(Device(gpu.name, (gpu.major, gpu.minor), gpu.total_memory) for gpu in gpus),
        error=" ".join(str(caught[-1].message).split())[:200] if caught else "",
        threads=torch.get_num_threads(),
        backends={
            "gloo": dist.is_gloo_available(),
            "nccl": dist.is_nccl_available() and usable,
            "mps": torch.backends.mps.is_available(),
        },
    )


def the_driver() -> Driver:
    """What `nvidia-smi` says."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return Driver()
    try:
        query = [command, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        listed = subprocess.run(
            query, capture_output=True, text=True, timeout=20, check=True
        ).stdout
        shown = subprocess.run(
            [command], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return Driver()
    return parse_driver(listed, shown)


def parse_driver(listed: str, shown: str) -> Driver:
    """The driver, from two outputs of `nvidia-smi`.

    Args:
        listed: csv of name and driver_version, without header.
        shown: the plain output, whose head has the version of CUDA.
    """
    rows = [
        [part.strip() for part in line.split(",")] for line in listed.splitlines() if "," in line
    ]
    names = tuple(row[0] for row in rows)
    version = rows[0][1] if rows else ""
    cuda = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", shown)
    return Driver(names, version, cuda[1] if cuda else "")


def memory() -> tuple[float, float]:
    """Bytes of memory, and free ones, that this container may use."""
    import psutil

    here = psutil.virtual_memory()
    try:
        limit = float(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # such as "max"
        limit = float("inf")
    return min(here.total, limit), min(here.available, limit)


def examine(results: Path, load: float | None) -> tuple[list[tuple[str, str]], list[str]]:
    """What is shown, as topics with texts, and problems, each a line that says what to do.

    Args:
        results: where measurements would be recorded.
        load: share of the usable cores that other processes take; None where it is unknown.
    """
    torch, driver, cores = the_torch(), the_driver(), machine.cores()
    packages = {name: machine.installed(name) for name in _PACKAGES}
    total, free = memory()
    folder = next(
        path for path in (results.absolute(), *results.absolute().parents) if path.exists()
    )
    try:
        tempfile.TemporaryFile(dir=folder).close()
        is_writable = True
    except OSError:
        is_writable = False
    problems = [gpu_trouble(driver, torch, os.environ.get("CUDA_VISIBLE_DEVICES"))]
    if missing := [name for name, version in packages.items() if not version]:
        problems.append(f"{', '.join(missing)} is not installed: run `./run_all.sh --setup-only`")
    if not is_writable:
        problems.append(f"{results} cannot be written: choose another folder with --results")
    listed = ", ".join(f"{name} {version or 'MISSING'}" for name, version in packages.items())
    backends = [f"{name} {'yes' if there else 'no'}" for name, there in torch.backends.items()]
    gpus = [f"{gpu.name} ({size(gpu.nbytes)}, {_sm(gpu)})" for gpu in torch.devices]
    key = wandb_mirror.has_key(wandb_mirror.server())
    abilities = _abilities(cores, len(torch.devices))
    rows = [
        ("processor", f"{machine.cpu_name()}: {cores} usable cores of {os.cpu_count()}"),
        ("load", "not known here" if load is None else contention.describe(load)),
        ("memory", f"{size(free)} free of {size(total)}"),
        ("disk", f"{size(shutil.disk_usage(folder).free)} free at {results}"),
        ("python", f"{sys.version.split()[0]}; {listed}"),
        (
            "torch",
            f"{torch.threads} threads; CUDA build {torch.cuda or 'none'}; {', '.join(backends)}",
        ),
        ("GPUs, by torch", ", ".join(gpus) or "none"),
        ("GPUs, by driver", ", ".join(driver.gpus) or "none"),
        ("driver", driver.version or "none"),
        ("W&B", f"offline unless --wandb online; API key {'set' if key else 'not set'}"),
        ("results", f"{results}: {'writable' if is_writable else 'NOT WRITABLE'}"),
        *zip(("measures", *[""] * 9), abilities, strict=False),
    ]
    return rows, [line for line in problems if line]


def _abilities(cores: int, gpus: int) -> Iterator[str]:
    """What can be measured here, one line each, with the scale names of `repro plan`."""
    scale, why = machine.default_scale()
    yield f"scale {scale} when none is asked for: {why}"
    yield f"on the CPU: K up to {cores} stages, one core each (--scale smoke, laptop)"
    if gpus:
        yield f"on GPUs: K up to {gpus}, one GPU each (--scale node, paper)"
    if gpus > 1:
        yield f"what one GPU cannot show, for docs/cluster.md: `{_ON_GPUS}`"
    yield "a larger K is skipped, and the report names it"


def print_report(results: Path = Path("results")) -> int:
    from rich.table import Table

    from repro.harness.terminal import console_for

    load = CpuShare().share_soon()
    rows, errors = examine(results, load)
    console = console_for()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for topic, text in rows:
        table.add_row(topic, text)
    console.print(table)
    for line in errors:
        console.print(f"ERROR: {line}", style="bold red", markup=False, soft_wrap=True)
    busy = contention.is_busy(load)
    if busy:
        console.print(
            "WARNING: this machine is busy, see load: steps measured now would take longer and "
            "differ more; end other processes first",
            style="bold yellow",
            markup=False,
            soft_wrap=True,
        )
    if errors:
        return 1
    verdict = "Otherwise all is well" if busy else "All is well"
    console.print(
        f"{verdict}. Next: `.venv/bin/repro list`, or `./run_all.sh --scale smoke`.", style="green"
    )
    return 0


def main(arguments: list[str]) -> int:
    options = parse(DoctorOptions, arguments, "repro doctor")
    status = print_report(options.results)
    if options.check:
        from repro.cli.doctor_check import print_checks  # imports torch

        status = max(status, print_checks())
    return status
