"""`repro doctor`: this machine's hardware and software, and what can be measured on it.

A GPU that the driver lists and torch cannot use is an error, with a reason and a remedy. Otherwise
stages would compute on the CPU, and nobody would know why.
"""

import os
import platform
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from repro.cli.answers import print_answer
from repro.cli.options import parse
from repro.harness import machine
from repro.harness.text import size

_PACKAGES = ("torch", "torchvision", "timm", "datasets", "wandb")


@dataclass(frozen=True)
class DoctorOptions:
    """Show this machine's hardware and software, and what can be measured on it."""


@dataclass(frozen=True)
class Torch:
    """What torch was built for and what it can use."""

    cuda: str = ""  # version of CUDA that it was built with; empty for a CPU build
    gpus: tuple[str, ...] = ()
    warning: str = ""  # its own, of GPUs that it cannot use


def trouble_here() -> str:
    """`gpu_trouble` of this machine; torch is imported only if the driver lists a GPU."""
    listed = gpus_of_driver()
    return gpu_trouble(listed, the_torch()) if listed else ""


def gpu_trouble(listed: Sequence[str], torch: Torch) -> str:
    """Why torch cannot use the GPUs that the driver lists, as one line; empty if it can."""
    if not listed or (torch.gpus and "not compatible" not in torch.warning):
        return ""
    reasons = [f"it was built for CUDA {torch.cuda}" if torch.cuda else "it is a CPU build"]
    reasons += [torch.warning] if torch.warning else []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    reasons += [] if visible is None else [f"CUDA_VISIBLE_DEVICES={visible!r} may hide them"]
    return (
        f"{len(listed)} x {listed[0]} here, but torch cannot use them: {'; '.join(reasons)}. "
        "Unset that variable, update the driver, or install a build of torch that fits the driver, "
        "`.venv/bin/uv pip install --torch-backend=auto --reinstall torch torchvision`"
    )


def the_torch() -> Torch:
    if not machine.installed("torch"):
        return Torch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
    texts = [" ".join(str(each.message).split()) for each in caught if each.category is UserWarning]
    return Torch(
        cuda=torch.version.cuda or "",
        gpus=tuple(f"{g.name} ({size(g.total_memory)}, sm_{g.major}{g.minor})" for g in gpus),
        warning=texts[-1][:300] if texts else "",
    )


def gpus_of_driver() -> list[str]:
    """The GPUs that NVIDIA's driver lists; none without a driver."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return text.splitlines()


def main(arguments: list[str]) -> int:
    parse(DoctorOptions, arguments, "repro doctor")
    torch, listed, cores = the_torch(), gpus_of_driver(), machine.cores()
    packages = {name: machine.installed(name) for name in _PACKAGES}
    found = [f"{name} {version or '-'}" for name, version in packages.items()]
    total, free = machine.memory()
    scale, why = machine.default_scale()
    build = f"built for CUDA {torch.cuda}" if torch.cuda else "a build without CUDA"
    print_answer(
        {
            "processor": f"{machine.cpu_name()}: {cores} usable cores of {os.cpu_count()}",
            "memory": f"{size(free)} free of {size(total)}",
            "GPUs that torch can use": ", ".join(torch.gpus) or f"none; torch is {build}",
            "packages": ", ".join([f"python {platform.python_version()}", *found]),
            "measured here": f"scale {scale} unless --scale chooses another: {why}",
        }
    )
    problems = [text] if (text := gpu_trouble(listed, torch)) else []
    if missing := [name for name, version in packages.items() if not version]:
        problems.append(f"{', '.join(missing)} is not installed: run `./run_all.sh --setup-only`")
    for line in problems:
        print(f"ERROR: {line}")
    if not problems:
        print("Next: `.venv/bin/repro list`, or `./run_all.sh --scale smoke`.")
    return 1 if problems else 0
