"""The work of one worker process in one round."""

import gc
import itertools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from repro.harness.request import Request, Result
from repro.harness.spec import TIMED
from repro.harness.tasks import calibrate, fit, learn, simulate, traffic, train
from repro.harness.tasks.setup import groups_of

_TASKS = {"fit": fit.run, "calibrate": calibrate.run, "learn": learn.run, "traffic": traffic.run}


def run(
    requests: Sequence[Request],
    rank: int,
    at: Callable[[int], object] = lambda _: None,
    agree: train.Agree = lambda _, decide: decide(),
) -> list[Result]:
    """Measure one run, or several together. Every worker calls it, also one without a stage.

    Several are timed step against step by all workers, and rank 0 gets the results. Ranks are
    numbered replica after replica. `at` gets the index of the run whose turn it is; `agree` is for
    `train.run`.
    """
    first = requests[0]
    groups = [groups_of(request.spec) for request in requests]
    if first.device == "cuda":
        choose_kernels(exact=first.spec.task == "learn")
    results: list[Result] = []
    if first.spec.task == "train" and first.spec.fidelity in TIMED:
        results = train.run(requests, rank, groups, at, agree)
    elif rank < first.spec.devices:
        task = simulate.run if first.spec.fidelity == "simulated" else _TASKS[first.spec.task]
        results = [task(first, rank, groups[0])]
    if first.device == "cuda":
        # What this process keeps for its next run is missing to processes on the same GPU.
        gc.collect()
        torch.cuda.empty_cache()
    # Not after an error: closed connections would hide it behind errors of the neighbours.
    for group in itertools.chain.from_iterable(groups):
        dist.destroy_process_group(group)
    return results if rank == 0 else []


def choose_kernels(*, exact: bool) -> None:
    """Float32 and deterministic kernels to compare results, TF32 (`Machine.precision`) to time."""
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.use_deterministic_algorithms(exact, warn_only=True)
