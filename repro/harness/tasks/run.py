"""The work of one worker process for one run in one round."""

import gc
import re
import warnings

import torch
import torch.distributed as dist

from repro.harness.job import Job, Measured
from repro.harness.tasks import calibrate, check, fit, learn, simulate, train
from repro.harness.tasks.setup import groups_of

# What torch warns of where an operator has no deterministic kernel on a GPU.
_NOT_DETERMINISTIC = r"(\S+) does not have a deterministic implementation"
_TASKS = {
    "train": train.run,
    "check": check.run,
    "fit": fit.run,
    "calibrate": calibrate.run,
    "roofline": calibrate.run_roofline,
    "learn": learn.run,
}


def run(job: Job, rank: int) -> Measured | None:
    """Measure one run. Every worker calls it, also one without a stage; rank 0 gets the record.

    Ranks are numbered replica after replica.
    """
    spec = job.spec
    groups = groups_of(spec)
    processes = 1 if spec.library == "torchgpipe" else spec.devices
    if rank >= processes:
        return None
    task = simulate.run if spec.fidelity == "simulated" else _TASKS[spec.task]
    if job.device == "cuda":
        _choose_kernels(exact=spec.task in ("check", "learn"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        measured = task(job, rank, groups)
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    found = [re.match(_NOT_DETERMINISTIC, str(warning.message)) for warning in caught]
    if names := sorted({match[1] for match in found if match}):
        measured.record.labels["not deterministic"] = ", ".join(names)
    if job.device == "cuda":
        # What this process keeps for its next run is missing to processes on the same GPU.
        gc.collect()
        torch.cuda.empty_cache()
    # Not after an error: closed connections would hide it behind errors of the neighbours.
    for group in groups:
        dist.destroy_process_group(group)
    return measured if rank == 0 else None


def _choose_kernels(*, exact: bool) -> None:
    """Float32 and deterministic kernels to compare results, TF32 (`Machine.precision`) to time."""
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.use_deterministic_algorithms(exact, warn_only=True)
