"""Worker processes that are started once and measure many runs.

The coordinator posts jobs in a store; every worker takes each job in turn, ranks below K measure,
rank 0 posts the result. An error in any worker is reported by `gpipe.runtime.health`: that run has
failed, and fresh workers are started for the next one. `pools` decides where workers run.
"""

import dataclasses
import json
import os
import shutil
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import torch.distributed as dist

from repro.gpipe.core import memory
from repro.gpipe.runtime import health
from repro.gpipe.runtime.heartbeats import (
    INTERVAL,
    Failure,
    Watch,
    board,
    last_seen,
    post_death,
    posted_failure,
    running,
)
from repro.gpipe.runtime.launch import initialise
from repro.gpipe.runtime.processes import how
from repro.gpipe.runtime.status import rank_name, status
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Job, Measured, Outcome
from repro.harness.machine import oom_kills
from repro.harness.pools import Pool
from repro.harness.schema import round_record
from repro.harness.spec import WHOLE_WORLD, RunSpec
from repro.harness.tasks.run import run
from repro.io import signals
from repro.simulate import StageCosts

_LONG = timedelta(days=30)  # idle workers wait for the next job
_POLL = 0.05  # seconds between looks at the store: rare enough not to disturb the stages
_START = 180.0  # seconds for workers to begin


class Workers:
    """Processes, one per stage, with one thread each; a context manager that always ends them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._store: dist.Store | None = None
        self._jobs = 0
        self._watch: Watch | None = None
        self._look = 0.0  # when to look for silence again
        self._trouble = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        self.pool.dismiss()
        if self.pool.logs is not None and not self._trouble:
            shutil.rmtree(self.pool.logs, ignore_errors=True)

    def ready(self) -> None:
        """Start the workers if they are not there, so that no deadline includes their start."""
        if self._store is not None or self.pool.lost:
            return
        self._jobs = 0
        self._store = self.pool.start(work)
        self._watch = Watch(board(self._store))
        keys = [f"ready/{rank}" for rank in range(self.pool.count)]
        end = time.monotonic() + _START
        while not self._store.check(keys) and self._failure() is None and time.monotonic() < end:
            signals.check()
            time.sleep(_POLL)

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Measure one run once within `deadline` seconds. Errors of the run are its outcome."""
        self.ready()
        if self._store is None:
            return Outcome(
                "interrupted", f"{self.pool.lost}; start it again, finished runs are kept"
            )
        kills = oom_kills()
        self._store.set(f"job/{self._jobs}", _pack(job))
        outcome = self._wait(deadline, job.spec.devices)
        self._jobs += 1
        if outcome.status == "done":
            return outcome
        if "SIGKILL" in outcome.reason and oom_kills() > kills:
            outcome = replace(outcome, status="oom")
        # Running out of a fit's memory is a result, so its logs are not kept.
        self._trouble |= not memory.over_limit(outcome.reason)
        self._stop()
        return replace(outcome, log=str(self.pool.logs or ""))

    def rest(self) -> None:
        """End the processes; the next job starts them again."""
        self._stop()

    def _wait(self, deadline: float, stages: int) -> Outcome:
        assert self._store is not None
        end = time.monotonic() + deadline
        result = f"result/{self._jobs}"
        while time.monotonic() < end:
            signals.check()
            if self._store.check([result]):
                return Outcome("done", measured=_unpack_measured(self._store.get(result)))
            if (failure := self._failure()) is not None:
                return Outcome(failure.status, failure.text)
            time.sleep(_POLL)
        seen = "; ".join(last_seen(board(self._store), rank) for rank in range(stages))
        return Outcome("timeout", f"no result within {deadline:.0f} s ({seen})"[:1000])

    def _failure(self) -> Failure | None:
        """The failure that a worker reported, or its neighbours, or its exit code."""
        assert self._store is not None
        posts = board(self._store)
        if (failure := posted_failure(posts)) is not None:
            return failure
        for rank, code in self.pool.ended().items():
            return post_death(posts, rank, how(code))
        if time.monotonic() < self._look:
            return None
        # Workers watch each other, but all of them may stop.
        self._look = time.monotonic() + INTERVAL
        return self._watch.find_silent(running(posts, self.pool.count)) if self._watch else None

    def _stop(self) -> None:
        if self._store is not None:
            self.pool.stop()
        self._store = None


class Crews:
    """Workers of several numbers, of which one at a time has processes: they share the devices.

    A run that has enough GPUs gets as many workers as there are GPUs. More workers than GPUs have
    no NCCL (`launch.initialise`), and its messages would go through the host. A library that takes
    all processes as its own gets as many as it needs.

    Args:
        start: makes workers of a number.
        widest: processes of the widest run.
        gpus: how many there are, 0 on the CPU.
    """

    def __init__(self, start: Callable[[int], Workers], widest: int, gpus: int) -> None:
        self._start, self._widest, self._gpus = start, widest, min(gpus, widest)
        self._crews: dict[int, Workers] = {}
        self._current = self._of(widest if gpus < 2 else self._gpus)

    def __enter__(self) -> "Crews":
        return self

    def __exit__(self, *error: object) -> None:
        # Each crew is left, also where leaving another one fails.
        with ExitStack() as stack:
            for crew in self._crews.values():
                stack.push(crew)

    def ready(self) -> None:
        """Start the workers that measured the last job."""
        self._current.ready()

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Measure one run once, by as many workers as it needs."""
        wanted = self._of(self._count(job))
        if wanted is not self._current:
            self._current.rest()
            self._current = wanted
        return wanted.measure(job, deadline)

    def _of(self, count: int) -> Workers:
        if count not in self._crews:
            self._crews[count] = self._start(count)
        return self._crews[count]

    def _count(self, job: Job) -> int:
        devices = job.spec.devices
        if job.spec.library in WHOLE_WORLD:
            return devices
        if job.device == "cuda":
            return self._gpus if devices <= self._gpus else self._widest
        # Workers that are there need not start again.
        there = self._current.pool.count
        return there if devices <= there else self._widest


def work(rank: int, world: int, store: dist.Store, group: dist.Store) -> None:
    """The body of a worker process; see `pools.Work`."""
    # Without it cuBLAS is not deterministic; it is read when a GPU is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    health.begin(store, rank, world)
    initialise(rank, world, group)
    store.set(f"ready/{rank}", "yes")
    number = 0
    while True:
        store.wait([f"job/{number}"], _LONG)
        measured = _execute(_unpack(store.get(f"job/{number}")), rank)
        if measured is not None:
            store.set(f"result/{number}", _pack_measured(measured))
        number += 1


def _execute(job: Job, rank: int) -> Measured | None:
    """Measure on this rank. An error is logged and raised, which ends all workers.

    Returns:
        On rank 0 what was measured, on the others None.
    """
    status.who, status.step = _name(job.spec, rank), None
    status.outside = (
        "before its first step" if job.spec.library == "repro" else f"in {job.spec.library}"
    )
    health.current().beat()
    try:
        return run(job, rank)
    except Exception:
        traceback.print_exc()
        raise


def _name(spec: RunSpec, rank: int) -> str:
    chain, stage = divmod(rank, spec.K)
    T = spec.tensor_parallel or 1
    if chain >= spec.D * T:
        return f"rank {rank}, without a stage"
    kind = "rank" if spec.stages_per_rank else "stage"
    return rank_name(kind, stage, chain // T, spec.D)


def _pack(job: Job) -> str:
    costs = job.costs.plain() if job.costs else None
    fields = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return json.dumps(fields | {"spec": job.spec.plain(), "costs": costs})


def _unpack(raw: bytes) -> Job:
    fields = json.loads(raw)
    spec, balance, costs = fields.pop("spec"), fields.pop("balance"), fields.pop("costs")
    return Job(
        RunSpec(**spec),
        tuple(balance) if balance else None,
        costs=StageCosts.from_plain(costs) if costs else None,
        **fields,
    )


def _pack_measured(measured: Measured) -> str:
    timeline = measured.timeline
    spans = [] if timeline is None else timeline.to_rows()
    # How many stages there are, and how many of them each rank holds.
    stages = (0, 1) if timeline is None else (timeline.stages, timeline.stages_per_rank)
    record = measured.record.model_dump(mode="json")
    return json.dumps({"record": record, "spans": spans, "stages": stages})


def _unpack_measured(raw: bytes) -> Measured:
    fields = json.loads(raw)
    spans, stages = fields["spans"], fields["stages"]
    timeline = Timeline.from_rows(spans, *stages) if spans else None
    return Measured(round_record(fields["record"]), timeline)
