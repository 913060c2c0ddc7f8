"""What one worker process does for one run in one round.

Every stage's process calls `run` with the same job; rank 0 gets the metrics.
"""

from typing import Any

import torch.distributed as dist

from repro.harness.job import Job
from repro.harness.tasks import calibrate, check, fit, simulate, train
from repro.harness.tasks.setup import groups_of


def run(job: Job, rank: int) -> dict[str, Any] | None:
    """Measure one run; every worker calls it, also one that has no stage. Its ranks go replica after replica.

    Rank 0 returns {"metrics": ..., "timeline": rows}, the others None. The metrics are a line of
    metrics.jsonl: seconds in `step_s` and `setup_s`, bytes per stage in `peak_bytes`.
    """
    groups = groups_of(job.spec)
    processes = 1 if job.spec.library == "torchgpipe" else job.spec.devices
    if rank >= processes:
        return None
    tasks = {"train": train.run, "check": check.run, "fit": fit.run, "calibrate": calibrate.run}
    task = simulate.run if job.spec.fidelity == "simulated" else tasks[job.spec.task]
    found = task(job, rank, groups)
    # not after an error, which closed connections would hide behind errors of the neighbours
    for group in groups:
        dist.destroy_process_group(group)
    return found if rank == 0 else None
