"""The largest model that fits: counted in this process, or one size trained by all stages within the memory."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from repro.costs.fit import Search, Step
from repro.costs.size_ladder import families
from repro.costs.stage_memory import Messages
from repro.harness import allocator
from repro.harness.job import Job
from repro.harness.spec import ENOUGH, RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.harness.tasks.setup import setup_of
from repro.methods.own import Own
from repro.models import build

Line = dict[str, Any]
_last: Search | None = None  # of this process: whose traces the next one uses


def run(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Count the largest model that fits; or, measured, train one size within the memory."""
    spec = job.spec
    if spec.fidelity == "counted":
        return {"metrics": counted(spec, job.device), "timeline": []}
    started = time.perf_counter()
    if job.device == "cuda" and spec.memory != ENOUGH:
        _check_room(spec)
    model = build(spec.model, **spec.arguments)
    batch = model.batch(spec.N, spec.seed)
    method = Own(setup_of(job, model, batch[0], rank, groups))
    try:
        found = attempt(spec, method, batch, job.device)
    finally:
        method.close()
    seconds = time.perf_counter() - started
    metrics = line(
        found, found["peak_bytes"], list(method.balance), seconds, model.unit, model.labels
    )
    return {"metrics": metrics, "timeline": []}


def _check_room(spec: RunSpec) -> None:
    """Raise a one-line ValueError where stages that share a GPU could not all have their memory."""
    here = math.ceil(spec.K / torch.cuda.device_count())
    total = torch.cuda.mem_get_info(0)[1]
    if here * (spec.memory or 0) > total:
        raise ValueError(
            f"memory = {spec.memory}: {here} stage(s) share a GPU of {total} bytes here; use more "
            "GPUs, or larger ones"
        )


def counted(spec: RunSpec, device: str) -> Line:
    """Count: in one process, for all stages, the operators of this device."""
    global _last

    began = time.perf_counter()
    optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
    under_way = Messages(0, 0) if spec.transport == "shm" else Messages()
    step = Step(
        spec.K, spec.M, spec.N, spec.checkpoint, spec.schedule, optimizer, under_way, device
    )
    assert spec.memory is not None
    _last = Search(partial(build, spec.model), step, spec.memory, _last)
    sizes = families(spec.model, spec.arguments, None)
    found = _last.largest(sizes)
    cuts = {
        "largest": found.best and found.best.plain(),
        "next": found.above and found.above.plain(),
    }
    peaks = [stage.total for stage in found.best.stages] if found.best else None
    shown = found.best or found.above
    model = build(spec.model, **(shown.args if shown else sizes[0][0]))
    balance = list(shown.balance) if shown else [0]
    return line(cuts, peaks, balance, time.perf_counter() - began, model.unit, model.labels)


def attempt(spec: RunSpec, method: Own, batch: tuple[Any, Any], device: str) -> Line:
    """Train one size within the memory: peak bytes of each stage, and where that is cheap also what its allocator says.

    Two steps: before the first there are no gradients, and the optimizer has no state. A given size
    is small enough for a third one under torch's profiler.

    Raises:
        MemoryError, torch.OutOfMemoryError: on the stage that needs more.
    """
    method.peak_bytes(*batch, limit=spec.memory)
    found: Line = {"peak_bytes": method.peak_bytes(*batch, limit=spec.memory)}
    if spec.memory == ENOUGH and device == "cpu":
        before = method.resident(*batch)
        peak = allocator.measure(lambda: method.train_step(*batch))
        found["allocator_bytes"] = method.gather([before + peak.visible, before + peak.everything])
    return found


def line(
    fit: Mapping[str, Any],
    peaks: Sequence[int] | None,
    balance: list[int],
    seconds: float,
    unit: str,
    labels: Mapping[str, Any],
) -> Line:
    """A line of metrics.jsonl without steps."""
    nothing = {"step_s": [], "loss": [], "breakdown": {}}
    nothing |= {"bubble_idle_over_total": [None], "bubble_idle_over_work": [None]}
    found = {"fit": dict(fit), "peak_bytes": peaks, "balance": balance, "setup_s": seconds}
    return {**nothing, **found, "unit": unit, "labels": dict(labels)}
