"""What one worker process does for one run in one round: build, warm up, time, read the memory.

Every stage's process calls `run` with the same job; rank 0 gets the metrics. A step lasts from the first stage's start,
after a barrier, to the last stage's end, its device included, whether it is traced or not. Peak memory is read in a
step of its own, which is not timed, because reading it slows a step down.
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from repro.gpipe import Pipeline, Timeline, breakdown
from repro.gpipe.microbatch import split
from repro.harness.spec import RunSpec
from repro.models import build

if TYPE_CHECKING:
    from repro.models import Model

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
}


@dataclass(frozen=True)
class Job:
    """One run to measure once.

    Attributes:
        spec: the run.
        balance: layers per stage as cut in an earlier round; None: cut now, as the spec says.
        memory: whether to read peak memory too.
        device: "cpu" or "cuda".
    """

    spec: RunSpec
    balance: tuple[int, ...] | None = None
    memory: bool = True
    device: str = "cpu"


@dataclass(frozen=True)
class Step:
    """One timed step: wall seconds until the slowest stage has ended, mean loss, spans of all stages if traced."""

    seconds: float
    loss: float
    timeline: Timeline | None


def run(job: Job, rank: int) -> dict[str, Any] | None:
    """Measure one run; every rank below K x D calls it, replica after replica.

    Rank 0 returns {"metrics": ..., "timeline": rows}, the others None.

    The metrics are a line of metrics.jsonl: seconds in `step_s` and `setup_s`, bytes per stage in `peak_bytes`.
    """
    started = time.perf_counter()
    device = _device(job.device, rank)
    spec = job.spec
    model = build(spec.model, **spec.model_args)
    inputs, targets = model.batch(spec.N, spec.seed)
    if spec.D > 1:
        inputs, targets = (split(tree, spec.D)[rank // spec.K] for tree in (inputs, targets))
    pipe = _pipeline(job, model, inputs, device)
    optimizer = _optimizer(spec, pipe.parameters())
    try:
        for _ in range(spec.warmup):
            pipe.train_step(inputs, targets, model.loss, optimizer)
        setup = time.perf_counter() - started
        steps = [_timed_step(pipe, inputs, targets, model, optimizer, spec.trace) for _ in range(spec.steps)]
        peaks = pipe.measure_memory(inputs, targets, model.loss, optimizer) if job.memory else None
        return _metrics(model, pipe, steps, peaks, setup) if rank == 0 else None
    finally:
        pipe.close()


def check(spec: RunSpec) -> None:
    """Raise a one-line ValueError for what only the model can tell: its name, arguments, L, and whether it computes.

    Builds the list of layers but no layer.
    """
    if spec.fidelity not in ("measured", "emulated"):
        raise ValueError(f"fidelity = '{spec.fidelity}': workers run 'measured' and 'emulated'; choose one of these")
    model = build(spec.model, **spec.model_args)
    waits = model.labels.get("compute") == "timed wait"
    if waits != (spec.fidelity == "emulated"):
        raise ValueError(
            f"fidelity = '{spec.fidelity}': the layers of {spec.model} {'wait' if waits else 'compute'}, so allowed is "
            f"'{'emulated' if waits else 'measured'}'; set that"
        )
    spec.fit(len(model.layers))


def _pipeline(job: Job, model: "Model", inputs: Any, device: torch.device) -> Pipeline:
    """The run's pipeline; a balance by time is measured on the first micro-batch."""
    spec = job.spec
    balance = job.balance or spec.balance
    if spec.K == 1 and isinstance(balance, str):
        balance = "uniform"  # nothing to cut, so nothing to profile
    more: dict[str, Any] = {"replicas": spec.D} if spec.D > 1 else {}
    if spec.transport != "auto":
        more["transport"] = spec.transport
    return Pipeline(
        model.layers,
        stages=spec.K,
        micro_batches=spec.M,
        balance=balance,
        checkpoint=spec.checkpoint,
        schedule=spec.schedule,
        device=device,
        seed=spec.seed,
        sample=split(inputs, spec.M)[0] if balance == "time" else None,
        **more,
    )


def _optimizer(spec: RunSpec, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    """This stage's optimizer; None on a stage without parameters, as a pooling layer alone makes one."""
    own = list(parameters)
    return OPTIMIZERS[spec.optimizer](own, lr=spec.lr) if own else None


def _timed_step(
    pipe: Pipeline, inputs: Any, targets: Any, model: "Model", optimizer: torch.optim.Optimizer | None, trace: bool
) -> Step:
    """One step after a barrier; collecting spans or times is not counted."""
    pipe.barrier()
    start = time.perf_counter()
    result = pipe.train_step(inputs, targets, model.loss, optimizer, trace=trace)
    if trace:
        return Step(result.seconds, result.loss, result.timeline)
    times = pipe.engine.wire.all_gather((start, start + result.seconds))  # one clock: the stages share a host
    return Step(max(end for _, end in times) - min(start for start, _ in times), result.loss, None)


def _metrics(
    model: "Model", pipe: Pipeline, steps: list[Step], peaks: list[int] | None, setup: float
) -> dict[str, Any]:
    """The metrics line of the round and the spans of its median step; null or nothing where none were recorded."""
    middle = sorted(steps, key=lambda step: step.seconds)[(len(steps) - 1) // 2].timeline
    traced = [step.timeline for step in steps if step.timeline is not None]
    parts = [breakdown(timeline, pipe.schedule) for timeline in traced]
    return {
        "metrics": {
            "step_s": [step.seconds for step in steps],
            "loss": [step.loss for step in steps],
            "bubble_idle_over_total": [timeline.bubble_over_total for timeline in traced] or [None],
            "bubble_idle_over_work": [timeline.bubble_over_work for timeline in traced] or [None],
            "breakdown": {name: statistics.mean(part[name] for part in parts) for name in (parts or [{}])[0]},
            "peak_bytes": peaks,
            "balance": list(pipe.balance),
            "setup_s": setup,
            "unit": model.unit,
            "labels": dict(model.labels),
        },
        "timeline": middle.to_rows() if middle is not None else [],
    }


def _device(kind: str, rank: int) -> torch.device:
    """This rank's device; ranks of one host take its GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
