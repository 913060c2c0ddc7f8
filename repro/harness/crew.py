"""Worker processes that are kept between jobs and measure many runs.

The coordinator posts jobs in the store of the workers: one, or several that are measured
together. Every worker takes them in turn, ranks below K measure, rank 0 posts the result; of jobs
that are measured apart each rank measures and posts its own. When a worker fails, that run has
failed, and fresh workers are started for the next one.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch.distributed as dist
from pydantic import TypeAdapter

from repro.gpipe.core import memory
from repro.gpipe.runtime import health, processes
from repro.gpipe.runtime.group import Group, Torchrun, on_this_host
from repro.gpipe.runtime.heartbeats import Failure
from repro.gpipe.runtime.status import rank_name, status
from repro.harness.job import Job, Measured, Outcome
from repro.harness.machine import oom_kills
from repro.harness.spec import WHOLE_WORLD, RunSpec
from repro.harness.tasks.run import run
from repro.io import signals

_LONG = timedelta(days=30)  # idle workers wait for the next job
_POLL = 0.05  # seconds between looks at the store: rare enough not to disturb the stages
_START = 180.0  # seconds for workers to begin
processes.PRELOADED.append(__name__)  # else each worker takes 0.3 s to import it
# JSON and no pickle, since torchrun's store has an address
_JOBS = TypeAdapter(tuple[Job, ...])
_RESULT = TypeAdapter(list[Measured])


class Crew:
    """Workers, one per stage with one thread each; a context manager that always ends them.

    They start when a job needs them, as many as it needs, and those that are there measure on where
    they are enough. Under torchrun its ranks, the `team`, start the workers in place of this host.
    """

    def __init__(
        self, logs: Path | None = None, gpus: int = 0, team: Torchrun | None = None
    ) -> None:
        self._logs, self._gpus, self._team = logs, gpus, team
        self.count = 0  # of workers that are there
        self._group: Group | None = None
        self._opened = ExitStack()  # what ends with the workers
        self._done = 0
        self._trouble = False

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stop()
        finally:
            if self._team:
                self._team.dismiss()
            if self._logs is not None and not self._trouble:
                shutil.rmtree(self._logs, ignore_errors=True)

    def _start(self, count: int) -> None:
        """Start so many workers, so that no deadline includes their start."""
        self._done, self.count = 0, count
        if self._team:
            starting = self._team.group(work)
        else:
            assert self._logs is not None
            self._logs.mkdir(parents=True, exist_ok=True)
            starting = on_this_host(work, self.count, logs=self._logs)
        self._group = group = self._opened.enter_context(starting)
        keys = [f"ready/{rank}" for rank in range(self.count)]
        end = time.monotonic() + _START
        while not group.store.check(keys) and group.failure() is None and time.monotonic() < end:
            signals.check()
            time.sleep(_POLL)

    def measure(self, job: Job, deadline: float) -> Outcome:
        return self.measure_all((job,), deadline)[0]

    def measure_all(
        self, jobs: tuple[Job, ...], deadline: float, *, fresh: bool = False
    ) -> dict[int, Outcome]:
        """Measure runs at once; `fresh`: with workers that have measured nothing before.

        The outcome of each, by its number; where one failed, of that one alone.
        """
        if fresh:
            self._stop()
        wanted = self._wanted(jobs)
        if wanted != self.count:
            self._stop()
            self._start(wanted)
        assert self._group is not None
        kills = oom_kills()
        text = _JOBS.dump_json(jobs, exclude_none=True).decode()
        self._group.store.set(f"jobs/{self._done}", text)
        found = self._wait(self._group, deadline, jobs)
        self._done += 1
        if isinstance(found, list):
            return {n: Outcome("done", measured=each) for n, each in enumerate(found)}
        at = f"at/{self._done - 1}/{found.rank}"
        failed = int(self._group.store.get(at)) if self._group.store.check([at]) else 0
        status, reason = found.status, found.text
        if self._logs is None:
            print(found.traceback, end="", file=sys.stderr)
        else:  # of the worker, which may have been ended before it could print
            with (self._logs / f"{found.rank}.log").open("a", encoding="utf-8") as log:
                log.write(found.traceback)
        if "SIGKILL" in reason and oom_kills() > kills:
            status = "oom"
        # Running out of a fit's memory is a result, so its logs are not kept.
        self._trouble |= not memory.over_limit(reason)
        self._stop()
        return {failed: Outcome(status, reason, log=str(self._logs or ""))}

    def _wait(
        self, group: Group, deadline: float, jobs: tuple[Job, ...]
    ) -> list[Measured] | Failure:
        end = time.monotonic() + deadline
        ranks = len(jobs) if jobs[0].apart else 1  # that have results
        keys = [f"result/{self._done}/{rank}" for rank in range(ranks)]
        while time.monotonic() < end:
            signals.check()
            if group.store.check(keys):
                found = [_RESULT.validate_json(group.store.get(key)) for key in keys]
                return [each for of_rank in found for each in of_rank]
            if (failure := group.failure()) is not None:
                return failure
            time.sleep(_POLL)
        stages = max(job.spec.devices for job in jobs)
        seen = "; ".join(group.board.last_seen(rank) for rank in range(max(stages, ranks)))
        late = next(rank for rank, key in enumerate(keys) if not group.store.check([key]))
        return Failure(late, f"no result within {deadline:.0f} s ({seen})"[:1000], "timeout")

    def _stop(self) -> None:
        self._group, self.count = None, 0
        self._opened.close()

    def _wanted(self, jobs: tuple[Job, ...]) -> int:
        """How many workers these jobs are measured by: those that are there, where they can."""
        if self._team:
            return self._team.world
        needed = len(jobs) if jobs[0].apart else max(job.spec.devices for job in jobs)
        takes_all = any(job.spec.library in WHOLE_WORLD for job in jobs)
        # More workers than GPUs have no NCCL, and their messages would go through the host.
        crowded = jobs[0].device == "cuda" and needed <= self._gpus < self.count
        return needed if takes_all or crowded else max(needed, self.count)


def work(rank: int, _world: int, store: dist.Store) -> None:
    # Without it cuBLAS is not deterministic; it is read when a GPU first multiplies matrices.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    store.set(f"ready/{rank}", "yes")
    for number in count():
        store.wait([f"jobs/{number}"], _LONG)
        jobs = _JOBS.validate_json(store.get(f"jobs/{number}"))

        def at(index: int, number: int = number, jobs: tuple[Job, ...] = jobs) -> None:
            spec = jobs[index].spec
            status.who, status.step = _name(spec, 0 if jobs[index].apart else rank), None
            ours = spec.library == "repro"
            status.outside = "outside of its steps" if ours else f"in {spec.library}"
            if len(jobs) > 1:
                store.set(f"at/{number}/{rank}", str(index))

        def agree(block: int, decide: Callable[[], list[int]], number: int = number) -> list[int]:
            key = f"going/{number}/{block}"
            if rank == 0:
                store.set(key, json.dumps(decide()))
            store.wait([key], _LONG)
            return json.loads(store.get(key))

        at(min(rank, len(jobs) - 1) if jobs[0].apart else 0)
        health.current().beat()
        measured = run(jobs, rank, at, agree)  # an error ends all workers
        if measured:
            store.set(f"result/{number}/{rank}", _RESULT.dump_json(measured).decode())


def _name(spec: RunSpec, rank: int) -> str:
    chain, stage = divmod(rank, spec.K)
    T = spec.tensor_parallel or 1
    if chain >= spec.D * T:
        return f"rank {rank}, without a stage"
    kind = "rank" if spec.stages_per_rank else "stage"
    return rank_name(kind, stage, chain // T, spec.D)
