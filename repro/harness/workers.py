"""Worker processes that are started once and measure many runs.

The coordinator owns a store on the loopback address and posts jobs there; every worker takes each job in turn, ranks
below K measure, rank 0 posts the result. A worker that raises posts its traceback's last line; one that dies is seen
by torch.distributed.elastic. Either way that run has failed, and fresh workers are started for the next one. Under
torchrun the ranks that it started are the workers, and rank 0 is the coordinator as well.
"""

import json
import logging
import os
import shutil
import signal
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    PContext,
    ProcessFailure,
    RunProcsResult,
    Std,
    start_processes,
)

from repro.gpipe import NonFiniteError
from repro.gpipe.launch import initialise
from repro.harness import measure
from repro.harness.measure import Job
from repro.harness.spec import RunSpec

_LONG = timedelta(days=30)  # idle workers wait for the next job
_POLL = 0.05  # seconds between looks at the store: rare enough not to disturb the stages
_GRACE = 0.5  # seconds in which a death shows that a neighbour's error is only its consequence
_THREADS: dict[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a status word, the reason when it is not done, and what rank 0 measured.

    `log` is the folder of the workers' output, for a person to look into.
    """

    status: str
    reason: str = ""
    log: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)


class Workers:
    """`count` processes, one per stage, with one thread each; a context manager that ends them in every case."""

    def __init__(self, count: int, logs: Path) -> None:
        self.count = count
        self.logs = logs
        self._context: PContext | None = None
        self._store: dist.TCPStore | None = None
        self._jobs = 0
        self._trouble = False
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        for number, handler in self._handlers.items():
            _handle(number, handler)
        if not self._trouble:
            shutil.rmtree(self.logs, ignore_errors=True)

    def ready(self) -> None:
        """Start the workers unless they are there, so that no run's time or deadline includes it."""
        if self._context is not None:
            return
        self._start()
        assert self._context is not None
        assert self._store is not None
        keys = [f"ready/{rank}" for rank in range(self.count)]
        while not self._store.check(keys) and self._context.wait(0) is None:
            time.sleep(_POLL)

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Have one run measured once; `deadline` in seconds. Never raises for what happens inside a run."""
        self.ready()
        assert self._store is not None
        number = self._jobs
        self._jobs += 1
        self._store.set(f"job/{number}", _pack(job))
        outcome = self._wait(number, deadline)
        if outcome.status == "done":
            return outcome
        self._trouble = True
        self._stop()
        return replace(outcome, log=str(self.logs))

    def _wait(self, number: int, deadline: float) -> Outcome:
        assert self._store is not None
        assert self._context is not None
        end = time.monotonic() + deadline
        while time.monotonic() < end:
            if self._store.check([f"result/{number}"]):
                return Outcome(**json.loads(self._store.get(f"result/{number}")))
            dead = self._context.wait(0)
            if dead is not None or self._errors(number):
                return self._first_failure(number, dead)
            time.sleep(_POLL)
        return Outcome("timeout", f"no result within {deadline:.0f} s")

    def _errors(self, number: int) -> list[dict[str, Any]]:
        """What the stages posted about a job that went wrong, the earliest first."""
        assert self._store is not None
        keys = [f"error/{number}/{rank}" for rank in range(self.count)]
        posted = [json.loads(self._store.get(key)) for key in keys if self._store.check([key])]
        return sorted(posted, key=lambda error: error["at"])

    def _first_failure(self, number: int, dead: RunProcsResult | None) -> Outcome:
        """The cause among its consequences: a stage that died, else the error that was posted first."""
        assert self._context is not None
        if dead is None:
            time.sleep(_GRACE)
            dead = self._context.wait(0)
        if dead is not None and dead.failures:
            return Outcome("failed", _obituary(next(iter(dead.failures.values()))))
        errors = self._errors(number)
        return (
            Outcome(errors[0]["status"], errors[0]["reason"])
            if errors
            else Outcome("failed", "the workers ended early")
        )

    def _start(self) -> None:
        self._jobs = 0
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # failures are told in one line
        self.logs.mkdir(parents=True, exist_ok=True)
        port = self._store.port
        kept = {name: os.environ.get(name) for name in _THREADS}
        os.environ.update(_THREADS)  # inherited before a worker imports anything
        try:
            self._context = start_processes(
                name="stages",
                entrypoint=_worker,
                args={rank: (rank, self.count, port) for rank in range(self.count)},
                envs={rank: {"LOCAL_RANK": str(rank), "TORCHELASTIC_RUN_ID": "workers"} for rank in range(self.count)},
                logs_specs=DefaultLogsSpecs(log_dir=str(self.logs), redirects=Std.ALL),
            )
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            for number in _SIGNALS:  # elastic's own handlers raise an Exception that library code may swallow
                _handle(number, signal.default_int_handler)

    def _stop(self) -> None:
        if self._context is not None:
            self._context.close(signal.SIGKILL)
        self._context = None
        self._store = None


class Torchrun:
    """The same face as `Workers` under torchrun: rank 0 coordinates and measures, the other ranks `serve`."""

    def __init__(self) -> None:
        store, self.rank, self._world = next(iter(dist.rendezvous("env://")))
        self._group = dist.PrefixStore("group", store)
        self._store = dist.PrefixStore("jobs", store)
        self._jobs = 0
        self._broken = False

    def __enter__(self) -> "Torchrun":
        _handle(signal.SIGTERM, signal.default_int_handler)  # torchrun ends the others when one rank fails
        self._store.set("begin", "yes")
        initialise(self.rank, self._world, self._group)
        return self

    def __exit__(self, *error: object) -> None:
        self._store.set(f"job/{self._jobs}", "")

    def ready(self) -> None:
        """Torchrun has started everything."""

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Have one run measured once, by this rank too; the deadline of a hung run is torchrun's affair."""
        if self._broken:
            return Outcome("interrupted", "an earlier run failed and with it this torchrun job; start it again")
        self._store.set(f"job/{self._jobs}", _pack(job))
        outcome = _execute(job, self.rank)
        self._jobs += 1
        assert outcome is not None
        self._broken = outcome.status != "done"
        return outcome

    def serve(self) -> None:
        """Take jobs until rank 0 has no more; for every rank but 0."""
        self._store.wait(["begin"], _LONG)
        if self._store.get("begin") == b"yes":
            initialise(self.rank, self._world, self._group)
            if not _serve(self._store, self.rank):
                raise SystemExit(1)

    def decline(self) -> None:
        """Tell the other ranks that there is nothing to measure, unless they were called already."""
        self._store.compare_set("begin", "", "no")


def _handle(number: signal.Signals, handler: Any) -> None:
    with suppress(ValueError):  # only the main thread may; elsewhere nothing was changed
        signal.signal(number, handler)


def _worker(rank: int, world: int, port: int) -> None:
    """Entry point of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # die at once with the coordinator, even inside a kernel
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=_LONG)
    initialise(rank, world, dist.PrefixStore("group", store))
    store.set(f"ready/{rank}", "yes")
    if not _serve(store, rank):
        signal.pause()  # the coordinator ends all workers; leaving now would look like a second failure


def _serve(store: dist.Store, rank: int) -> bool:
    """Take jobs in order until an empty one; False after a failure, which spends the process."""
    number = 0
    while True:
        store.wait([f"job/{number}"], _LONG)
        raw = store.get(f"job/{number}")
        if not raw:
            return True
        outcome = _execute(_unpack(raw), rank)
        if outcome is not None and outcome.status != "done":
            store.set(f"error/{number}/{rank}", json.dumps({**asdict(outcome), "at": time.monotonic()}))
            return False
        if outcome is not None:
            store.set(f"result/{number}", json.dumps(asdict(outcome)))
        number += 1


def _execute(job: Job, rank: int) -> Outcome | None:
    """Measure on this rank; the outcome on rank 0 and wherever something went wrong, else None."""
    try:
        found = measure.run(job, rank)
    except (torch.OutOfMemoryError, MemoryError) as error:
        return Outcome("oom", _last_line(error, job.spec, rank))
    except Exception as error:
        traceback.print_exc()  # into this worker's log
        return Outcome("failed", _last_line(error, job.spec, rank))
    return Outcome("done", metrics=found["metrics"], timeline=found["timeline"]) if found is not None else None


def _last_line(error: BaseException, spec: RunSpec, rank: int) -> str:
    if isinstance(error, NonFiniteError):
        return str(error)  # the same on every rank, and it names the stage
    text = " ".join("".join(traceback.format_exception_only(error)).split())
    replica, stage = divmod(rank, spec.K)
    where = f"replica {replica}, stage {stage}" if spec.D > 1 else f"stage {stage}"
    return f"{where}: {text}"[:500]


def _obituary(failure: ProcessFailure) -> str:
    """Which stage died, and how."""
    code = failure.exitcode
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    hint = ", probably out of memory" if code == -signal.SIGKILL else ""
    return f"stage {failure.local_rank} died ({how}{hint})"


def _pack(job: Job) -> str:
    return json.dumps({**asdict(job), "spec": job.spec.model_dump(mode="json")})


def _unpack(raw: bytes) -> Job:
    data = json.loads(raw)
    balance = data["balance"]
    return Job(RunSpec(**data["spec"]), tuple(balance) if balance else None, data["memory"], data["device"])
