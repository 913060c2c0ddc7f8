"""The work of one worker process in one round."""

import gc
import itertools
import re
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from repro.harness.request import Request, Result
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
    requests: Sequence[Request],
    rank: int,
    at: Callable[[int], object] = lambda _: None,
    agree: train.Agree = lambda _, decide: decide(),
) -> list[Result]:
    """Measure one run, or several together. Every worker calls it, also one without a stage.

    Several are timed step against step by all workers, and rank 0 gets the results. Of runs that
    are `Request.apart` each rank measures its own as if it were alone, and gets that result. Ranks
    are numbered replica after replica. `at` gets the index of the run whose turn it is; `agree` is
    for `train.run`.
    """
    if requests[0].apart:
        if rank >= len(requests):
            return []
        requests, rank = requests[rank : rank + 1], 0
    first = requests[0]
    groups = [groups_of(request.spec) for request in requests]
    if first.device == "cuda":
        choose_kernels(exact=first.spec.task in ("check", "learn"))
    measured: list[Result] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if first.spec.task == "train" and first.spec.fidelity in TIMED:
            measured = train.run(requests, rank, groups, at, agree)
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
