"""Worker processes that are kept between requests and measure many runs.

The coordinator posts requests in the store of the workers: one, or several that are measured
together. Every worker takes them in turn, ranks below K measure, rank 0 posts the results. Of runs
that are measured apart each worker gets some, measures them and posts their results. When a worker
fails, that run has failed, and fresh workers are started for the next one.
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

from repro.costs.limit import over_limit
from repro.gpipe.runtime import health, processes
from repro.gpipe.runtime.group import Group, Torchrun, on_this_host
from repro.gpipe.runtime.heartbeats import Failure
from repro.gpipe.runtime.status import rank_name, status
from repro.harness.machine import cores, oom_kills
from repro.harness.request import Request, Result, Status
from repro.harness.spec import WHOLE_WORLD, RunSpec
from repro.harness.tasks.run import run
from repro.io import signals
from repro.models.own import OWN_DATA

_LONG = timedelta(days=30)  # idle workers wait for the next request
_POLL = 0.05  # seconds between looks at the store: rare enough not to disturb the stages
_START = 180.0  # seconds for workers to begin
processes.PRELOADED.append(__name__)  # else each worker takes 0.3 s to import it
# JSON and no pickle, since torchrun's store has an address
_REQUESTS = TypeAdapter(tuple[Request, ...])
_RESULTS = TypeAdapter(list[Result])


class Workers:
    """One process per stage with one thread each; a context manager that always ends them.

    They start when a run needs them, as many as it needs, and are kept for the next run if they are
    enough. Under torchrun its ranks, the `team`, start the workers in place of this host.
    """

    def __init__(
        self, logs: Path | None = None, gpus: int = 0, team: Torchrun | None = None
    ) -> None:
        self.logs, self._gpus, self._team = logs, gpus, team
        self.count = 0  # of workers that are there
        self._group: Group | None = None
        self._opened = ExitStack()  # what ends with the workers
        self._done = 0
        self._trouble = False

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._stop()
        finally:
            if self._team:
                self._team.dismiss()
            if self.logs is not None and not self._trouble:
                shutil.rmtree(self.logs, ignore_errors=True)

    def _start(self, count: int) -> None:
        """Start so many workers, so that no deadline includes their start."""
        self._done, self.count = 0, count
        if self._team:
            starting = self._team.group(serve)
        else:
            assert self.logs is not None
            self.logs.mkdir(parents=True, exist_ok=True)
            starting = on_this_host(serve, self.count, logs=self.logs)
        self._group = group = self._opened.enter_context(starting)
        keys = [f"ready/{rank}" for rank in range(self.count)]
        end = time.monotonic() + _START
        while not group.store.check(keys) and group.failure() is None and time.monotonic() < end:
            signals.check()
            time.sleep(_POLL)

    def measure(self, request: Request, deadline: float) -> Result | Status:
        return self.measure_all((request,), deadline)[0]

    def measure_all(
        self, requests: tuple[Request, ...], deadline: float, *, fresh: bool = False
    ) -> dict[int, Result | Status]:
        """Measure runs at once; `fresh`: with workers that have measured nothing before.

        The result of each, by its number; where one failed, the status of that one alone.
        """
        if fresh:
            self._stop()
        wanted = self._wanted(requests)
        if wanted != self.count:
            self._stop()
            self._start(wanted)
        assert self._group is not None
        kills = oom_kills()
        text = _REQUESTS.dump_json(requests, exclude_none=True).decode()
        self._group.store.set(f"requests/{self._done}", text)
        found = self._wait(self._group, deadline, requests)
        self._done += 1
        if isinstance(found, list):
            return dict(enumerate(found))
        at = f"at/{self._done - 1}/{found.rank}"
        failed = int(self._group.store.get(at)) if self._group.store.check([at]) else 0
        status, reason = found.status, found.text
        if requests[failed].spec.model.startswith("import:") and "layers[0]" in reason:
            reason += f"; {OWN_DATA}"
        if self.logs is None:
            print(found.traceback, end="", file=sys.stderr)
        else:  # of the worker, which may have been ended before it could print
            with (self.logs / f"{found.rank}.log").open("a", encoding="utf-8") as log:
                log.write(found.traceback)
        if "SIGKILL" in reason and oom_kills() > kills:
            status = "oom"
        # Running out of a fit's memory is a result, so its logs are not kept.
        self._trouble |= not over_limit(reason)
        self._stop()
        return {failed: Status(status, reason)}

    def _wait(
        self, group: Group, deadline: float, requests: tuple[Request, ...]
    ) -> list[Result] | Failure:
        end = time.monotonic() + deadline
        results = len(requests) if requests[0].apart else 1
        keys = [f"results/{self._done}/{n}" for n in range(results)]
        while time.monotonic() < end:
            signals.check()
            if group.store.check(keys):
                found = [_RESULTS.validate_json(group.store.get(key)) for key in keys]
                return [each for part in found for each in part]
            if (failure := group.failure()) is not None:
                return failure
            time.sleep(_POLL)
        apart, stages = requests[0].apart, max(request.spec.devices for request in requests)
        seen = [group.board.last_seen(rank) for rank in range(self.count if apart else stages)]
        late = next(n for n, key in enumerate(keys) if not group.store.check([key]))
        text = f"no result within {deadline:.0f} s ({'; '.join(seen)})"[:1000]
        return Failure(late % min(self.count, cores()), text, "timeout")

    def _stop(self) -> None:
        self._group, self.count = None, 0
        self._opened.close()

    def _wanted(self, requests: tuple[Request, ...]) -> int:
        """How many workers measure these runs: those that are there, if they can."""
        if self._team:
            return self._team.world
        needed = max(request.spec.devices for request in requests)
        if requests[0].apart:
            needed = min(len(requests), cores())
        takes_all = any(request.spec.library in WHOLE_WORLD for request in requests)
        # More workers than GPUs have no NCCL, and their messages would go through the host.
        crowded = requests[0].device == "cuda" and needed <= self._gpus < self.count
        return needed if takes_all or crowded else max(needed, self.count)


def serve(rank: int, world: int, store: dist.Store) -> None:
    """The work of one worker: it measures what the coordinator requests, until it is ended."""
    # Without it cuBLAS is not deterministic; it is read when a GPU first multiplies matrices.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    store.set(f"ready/{rank}", "yes")
    for number in count():
        store.wait([f"requests/{number}"], _LONG)
        requests = _REQUESTS.validate_json(store.get(f"requests/{number}"))
        _answer(requests, rank, world, store, number)  # an error ends all workers


def _answer(
    requests: tuple[Request, ...], rank: int, world: int, store: dist.Store, number: int
) -> None:
    """Measure on this worker, and post the results that it has."""
    apart = requests[0].apart

    def at(index: int) -> None:
        spec = requests[index].spec
        status.who, status.step = _name(spec, 0 if apart else rank), None
        ours = spec.library == "repro"
        status.outside = "outside of its steps" if ours else f"in {spec.library}"
        if len(requests) > 1:
            store.set(f"at/{number}/{rank}", str(index))

    def agree(block: int, decide: Callable[[], list[int]]) -> list[int]:
        key = f"going/{number}/{block}"
        if rank == 0:
            store.set(key, json.dumps(decide()))
        store.wait([key], _LONG)
        return json.loads(store.get(key))

    def post(index: int, results: list[Result]) -> None:
        store.set(f"results/{number}/{index}", _RESULTS.dump_json(results).decode())

    if apart:
        takers = min(world, cores())
        for index in range(rank, len(requests), takers) if rank < takers else ():
            at(index)
            health.current().beat()
            post(index, run(requests[index : index + 1], 0))
        return
    at(0)
    health.current().beat()
    if results := run(requests, rank, at, agree):
        post(0, results)


def _name(spec: RunSpec, rank: int) -> str:
    chain, stage = divmod(rank, spec.K)
    T = spec.tensor_parallel or 1
    if chain >= spec.D * T:
        return f"rank {rank}, without a stage"
    kind = "rank" if spec.stages_per_rank else "stage"
    return rank_name(kind, stage, chain // T, spec.D)
