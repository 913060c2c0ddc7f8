"""What one worker process does for one run in one round: build, warm up, time, read the memory.

Every stage's process calls `run` with the same job; rank 0 gets the metrics. A step lasts from the first stage's start,
after a barrier, to the last stage's end, its device included, whether it is traced or not. Peak memory is read in a
step of its own, which is not timed, because reading it slows a step down.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from repro.gpipe import NonFiniteError, Timeline, breakdown, make_schedule
from repro.gpipe.core.microbatch import split
from repro.gpipe.runtime.launch import TIMEOUT
from repro.harness.spec import ENOUGH, TIMED, RunSpec
from repro.harness.tasks import emulate
from repro.harness.tasks.cost_sources import link_speed
from repro.methods import Method, Setup, make
from repro.models import build
from repro.models.timed import TimedSGD

if TYPE_CHECKING:
    from repro.models import Model

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}
_SPARE = timedelta(seconds=10)  # until a stage gives up on a neighbour whose library refused


@dataclass(frozen=True)
class Job:
    """One run to measure once.

    Attributes:
        spec: the run.
        balance: layers per stage as cut in an earlier round; None: cut now, as the spec says.
        memory: whether to read peak memory too.
        device: "cpu" or "cuda".
        allow_nonfinite: record a run whose loss or gradients are inf or nan, instead of failing it.
        costs: of an emulated run with a device's profile what its stages are to wait, as `StageCosts.plain` gives it.
    """

    spec: RunSpec
    balance: tuple[int, ...] | None = None
    memory: bool = True
    device: str = "cpu"
    allow_nonfinite: bool = False
    costs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Step:
    """One timed step: wall seconds until the slowest stage has ended, mean loss, spans of all stages if traced."""

    seconds: float
    loss: float
    timeline: Timeline | None


def run(job: Job, rank: int) -> dict[str, Any] | None:
    """Measure one run; every worker calls it, also one that has no stage. Its ranks go replica after replica.

    Rank 0 returns {"metrics": ..., "timeline": rows}, the others None. The metrics are a line of metrics.jsonl: seconds
    in `step_s` and `setup_s`, bytes per stage in `peak_bytes`.
    """
    groups = _groups(job.spec)
    processes = 1 if job.spec.library == "torchgpipe" else job.spec.devices
    if rank >= processes:
        return None
    tasks = {"train": _train, "check": _check, "fit": _fit, "calibrate": _calibrate}
    task = _simulate if job.spec.fidelity == "simulated" else tasks[job.spec.task]
    found = task(job, rank, groups)
    for group in groups:  # not after an error, which closed connections would hide behind errors of the neighbours
        dist.destroy_process_group(group)
    return found if rank == 0 else None


def check(spec: RunSpec, model: "Model | None" = None) -> None:
    """Raise a one-line ValueError for what only the model can tell: its name, arguments, L, and whether it computes.

    Builds the list of layers but no layer; `model` is that of the spec, where it was built before.
    """
    if spec.task == "fit":
        from repro.costs.size_ladder import families

        sizes = families(spec.model, spec.arguments, None)
        build(spec.model, **sizes[0][0])
        if len(sizes) > 1 and spec.fidelity == "measured":
            raise ValueError(
                f"model_args = {spec.model_args} of {spec.model}: a measured fit grows one argument; fix all others, "
                "such as L"
            )
        return
    model = model or build(spec.model, **spec.arguments)
    if spec.task == "calibrate" and emulate.waits(model):
        raise ValueError(
            f"model = '{spec.model}' with task = 'calibrate': its layers wait as long as they say, so there is nothing "
            f"to time; `repro simulate {spec.model}` takes what they say"
        )
    if spec.modelled:
        emulate.check(spec, model)
    elif spec.fidelity not in TIMED:
        raise ValueError(f"fidelity = '{spec.fidelity}': training runs are {', '.join(TIMED)} or simulated; choose one")
    elif (waits := emulate.waits(model)) != (spec.fidelity == "emulated"):
        raise ValueError(
            f"fidelity = '{spec.fidelity}': the layers of {spec.model} {'wait' if waits else 'compute'}, so allowed is "
            f"'{'emulated' if waits else 'measured'}' or 'simulated'; set that"
        )
    spec.fit(len(model.layers))


def _train(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Warm up, time the steps, read the memory."""
    started = time.perf_counter()
    spec = job.spec
    stand_in = emulate.Emulation.of(job.costs) if job.costs else None
    model = stand_in.model if stand_in else build(spec.model, **spec.arguments)
    inputs, targets = model.batch(spec.M if stand_in else spec.N, spec.seed)
    if spec.D > 1:
        inputs, targets = (split(tree, spec.D)[rank // spec.K] for tree in (inputs, targets))
    setup = _setup(job, model, inputs, rank, groups)
    if stand_in:
        setup = replace(setup, balance="uniform", throttle=stand_in.throttle)
    method = make(spec.library, setup)
    try:
        for _ in range(spec.warmup):
            _refuse_nonfinite(method.train_step(inputs, targets).loss, job)
        gc.collect()
        gc.freeze()  # else a collection inside a step would walk all that torch has made, for either library
        prepared = time.perf_counter() - started
        steps = [_timed_step(method, inputs, targets, spec.trace) for _ in range(spec.steps)]
        for step in steps:
            _refuse_nonfinite(step.loss, job)
        peaks = method.peak_bytes(inputs, targets) if job.memory else None
        return _metrics(model, spec, method.balance, steps, peaks, prepared)
    finally:
        gc.unfreeze()
        method.close()


def _simulate(job: Job, _rank: int, _groups: list[Any]) -> dict[str, Any]:
    """Lay the schedule on a virtual clock, in this process alone."""
    return emulate.simulated(job.spec, job.device)


def _calibrate(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Time the layers, on all stages' processes at once."""
    from repro.harness.tasks import calibrate

    return calibrate.run(job.spec, rank, device_of(job.device, rank))


def _check(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Hold the library against the unsplit model."""
    from repro.methods.checks import examine

    started = time.perf_counter()
    spec = job.spec
    model = build(spec.model, **spec.arguments)
    setup = _setup(job, model, model.batch(spec.N, spec.seed)[0], rank, groups)
    found = examine(partial(make, spec.library), setup, model.batch, spec.N, spare=(groups or [None])[-1])
    line = _metrics(model, spec, setup.counts(), [], None, time.perf_counter() - started)
    line["metrics"]["checks"] = {name: asdict(check) for name, check in found.items()}
    return line


def _fit(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Count the largest model that fits; or, measured, train one size within the memory."""
    from repro.harness.tasks import fit
    from repro.methods.own import Own

    spec = job.spec
    if spec.fidelity == "counted":
        return {"metrics": fit.counted(spec, job.device), "timeline": []}
    started = time.perf_counter()
    if job.device == "cuda" and spec.memory != ENOUGH:
        _check_room(spec)
    model = build(spec.model, **spec.arguments)
    batch = model.batch(spec.N, spec.seed)
    method = Own(_setup(job, model, batch[0], rank, groups))
    try:
        found = fit.attempt(spec, method, batch, job.device)
    finally:
        method.close()
    seconds = time.perf_counter() - started
    line = fit.line(found, found["peak_bytes"], list(method.balance), seconds, model.unit, model.labels)
    return {"metrics": line, "timeline": []}


def _check_room(spec: RunSpec) -> None:
    """Raise a one-line ValueError where stages that share a GPU could not all have their memory."""
    here = math.ceil(spec.K / torch.cuda.device_count())
    total = torch.cuda.mem_get_info(0)[1]
    if here * (spec.memory or 0) > total:
        raise ValueError(
            f"memory = {spec.memory}: {here} stage(s) share a GPU of {total} bytes here; use more GPUs, or larger ones"
        )


def _setup(job: Job, model: "Model", inputs: Any, rank: int, groups: list[Any]) -> Setup:
    """The run as the methods take it; a balance by time is measured on the first micro-batch."""
    spec = job.spec
    return Setup(
        model.layers,
        model.loss,
        stages=spec.K,
        micro_batches=spec.M,
        sample=split(inputs, spec.M)[0],
        replicas=spec.D,
        balance=job.balance or spec.balance,
        checkpoint=spec.checkpoint,
        schedule=spec.schedule,
        transport=spec.transport,
        seed=spec.seed,
        device=device_of(job.device, rank),
        optimizer=partial(TimedSGD if emulate.waits(model) else OPTIMIZERS[spec.optimizer], lr=spec.lr),
        throttle=link_speed(spec.link),
        group=groups[0] if groups else None,
        allow_nonfinite=job.allow_nonfinite,
    )


def _groups(spec: RunSpec) -> list[Any]:
    """The process groups of a run, for a library that needs them: all workers must make them together."""
    if spec.library != "torch":
        return []
    from repro.methods.peers.pipelining import groups

    return groups(spec.K, [TIMEOUT, _SPARE] if spec.task == "check" else [TIMEOUT])


def _timed_step(method: Method, inputs: Any, targets: Any, trace: bool) -> Step:
    """One step after a barrier; collecting spans or times is not counted."""
    method.gather(None)
    result = method.train_step(inputs, targets, trace=trace)
    if trace:
        return Step(result.seconds, result.loss, result.timeline)
    times = method.gather((result.start, result.end))  # on one clock; a peer library's only on one host
    # The others may leave the barrier a little earlier; they have to wait for the first stage.
    return Step(max(end for _, end in times) - times[0][0], result.loss, None)


def _refuse_nonfinite(loss: float, job: Job) -> None:
    """Raise a NonFiniteError for a library that trains on; ours has said more."""
    if not (math.isfinite(loss) or job.allow_nonfinite):
        raise NonFiniteError(f"the loss is {loss}; lower the learning rate; --allow-nonfinite records it")


def _metrics(
    model: "Model",
    spec: RunSpec,
    balance: tuple[int, ...],
    steps: list[Step],
    peaks: list[int] | None,
    setup: float,
) -> dict[str, Any]:
    """The metrics line of the round and the spans of its median step; null or nothing where none were recorded."""
    schedule = make_schedule(spec.schedule, spec.K, spec.M, spec.checkpoint)
    timelines = [step.timeline for step in steps if step.timeline is not None]
    middle = sorted(timelines, key=lambda timeline: timeline.step_time)[(len(timelines) - 1) // 2 :][:1]
    parts = [breakdown(timeline, schedule) for timeline in timelines]
    return {
        "metrics": {
            "step_s": [step.seconds for step in steps],
            "loss": [step.loss for step in steps],
            "bubble_idle_over_total": [timeline.bubble_over_total for timeline in timelines] or [None],
            "bubble_idle_over_work": [timeline.bubble_over_work for timeline in timelines] or [None],
            "breakdown": {name: statistics.mean(part[name] for part in parts) for name in (parts or [{}])[0]},
            "peak_bytes": peaks,
            "balance": list(balance),
            "setup_s": setup,
            "unit": model.unit,
            "labels": dict(model.labels),
        },
        "timeline": middle[0].to_rows() if middle else [],
    }


def device_of(kind: str, rank: int) -> torch.device:
    """This rank's device; ranks of one host take its GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
