"""The work of one worker process in one round."""

import gc
import itertools
import re
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from repro.harness.job import Job, Measured
from repro.harness.spec import TIMED
from repro.harness.tasks import calibrate, check, fit, learn, simulate, traffic, train
from repro.harness.tasks.setup import groups_of

# What torch warns of where an operator has no deterministic kernel on a GPU.
_NOT_DETERMINISTIC = r"(\S+) does not have a deterministic implementation"
_TASKS = {
    "check": check.run,
    "fit": fit.run,
    "calibrate": calibrate.run,
    "learn": learn.run,
    "traffic": traffic.run,
}


def run(
    jobs: Sequence[Job],
    rank: int,
    at: Callable[[int], object] = lambda _: None,
    agree: train.Agree = lambda _, decide: decide(),
) -> list[Measured]:
    """Measure one run, or several together. Every worker calls it, also one without a stage.

    Several are timed step against step by all workers, and rank 0 gets the records. Of jobs that
    are `Job.apart` each rank measures its own as if it were alone, and gets that record. Ranks are
    numbered replica after replica. `at` gets the index of the job whose turn it is; `agree` is for
    `train.run`.
    """
    if jobs[0].apart:
        if rank >= len(jobs):
            return []
        jobs, rank = jobs[rank : rank + 1], 0
    first = jobs[0]
    groups = [groups_of(job.spec) for job in jobs]
    if first.device == "cuda":
        choose_kernels(exact=first.spec.task in ("check", "learn"))
    measured: list[Measured] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if first.spec.task == "train" and first.spec.fidelity in TIMED:
            measured = train.run(jobs, rank, groups, at, agree)
        elif rank < first.processes:
            task = simulate.run if first.spec.fidelity == "simulated" else _TASKS[first.spec.task]
            measured = [task(first, rank, groups[0])]
    for warning in caught:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    found = [re.match(_NOT_DETERMINISTIC, str(warning.message)) for warning in caught]
    if names := sorted({match[1] for match in found if match}):
        for each in measured:
            each.record.labels["not deterministic"] = ", ".join(names)
    if first.device == "cuda":
        # What this process keeps for its next run is missing to processes on the same GPU.
        gc.collect()
        torch.cuda.empty_cache()
    # Not after an error: closed connections would hide it behind errors of the neighbours.
    for group in itertools.chain.from_iterable(groups):
        dist.destroy_process_group(group)
    return measured if rank == 0 else []


def choose_kernels(*, exact: bool) -> None:
    """Float32 and deterministic kernels to compare results, TF32 (`Machine.precision`) to time."""
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.use_deterministic_algorithms(exact, warn_only=True)
