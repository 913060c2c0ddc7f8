"""What one worker process does for one run in one round.

Every stage's process calls `run` with the same job; rank 0 gets the metrics.
"""

import torch.distributed as dist

from repro.harness.job import Job, Measured
from repro.harness.tasks import calibrate, check, fit, simulate, train
from repro.harness.tasks.setup import groups_of


def run(job: Job, rank: int) -> Measured | None:
    """Measure one run; every worker calls it, also one that has no stage. Its ranks go replica after replica.

    Rank 0 returns what was measured, the others None.
    """
    groups = groups_of(job.spec)
    processes = 1 if job.spec.library == "torchgpipe" else job.spec.devices
    if rank >= processes:
        return None
    tasks = {"train": train.run, "check": check.run, "fit": fit.run, "calibrate": calibrate.run}
    task = simulate.run if job.spec.fidelity == "simulated" else tasks[job.spec.task]
    measured = task(job, rank, groups)
    # not after an error, which closed connections would hide behind errors of the neighbours
    for group in groups:
        dist.destroy_process_group(group)
    return measured if rank == 0 else None
