"""What one worker process does for one run in one round: build, warm up, time, read the memory.

Every stage's process calls `run` with the same job; rank 0 gets the metrics. Timed steps are traced: a step lasts from
the first stage's start, after a barrier, to the last stage's end, its device included. Peak memory is read in a step
of its own, which is not timed, because reading it slows a step down.
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
    """One timed step: wall seconds until the slowest stage has ended, mean loss, spans of all stages."""

    seconds: float
    loss: float
    timeline: Timeline


def run(job: Job, rank: int) -> dict[str, Any] | None:
    """Measure one run; every rank below K calls it. Rank 0 returns {"metrics": ..., "timeline": rows}, others None.

    The metrics are a line of metrics.jsonl: seconds in `step_s` and `setup_s`, bytes per stage in `peak_bytes`.
    """
    started = time.perf_counter()
    device = _device(job.device, rank)
    spec = job.spec
    model = build(spec.model, **spec.model_args)
    inputs, targets = model.batch(spec.N, spec.seed)
    pipe = _pipeline(job, model, inputs, device)
    optimizer = _optimizer(spec, pipe.parameters())
    try:
        for _ in range(spec.warmup):
            pipe.train_step(inputs, targets, model.loss, optimizer)
        setup = time.perf_counter() - started
        steps = [_timed_step(pipe, inputs, targets, model, optimizer) for _ in range(spec.steps)]
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
    if spec.D > 1:
        raise ValueError(f"D = {spec.D}: allowed is 1, replicas are not built yet; set D=1")
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
    )


def _optimizer(spec: RunSpec, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer | None:
    """This stage's optimizer; None on a stage without parameters, as a pooling layer alone makes one."""
    own = list(parameters)
    return OPTIMIZERS[spec.optimizer](own, lr=spec.lr) if own else None


def _timed_step(
    pipe: Pipeline, inputs: Any, targets: Any, model: "Model", optimizer: torch.optim.Optimizer | None
) -> Step:
    """One step after a barrier; its time is that of its spans, so collecting them is not counted."""
    pipe.barrier()
    result = pipe.train_step(inputs, targets, model.loss, optimizer, trace=True)
    assert result.timeline is not None
    return Step(result.seconds, result.loss, result.timeline)


def _metrics(
    model: "Model", pipe: Pipeline, steps: list[Step], peaks: list[int] | None, setup: float
) -> dict[str, Any]:
    """The metrics line of the round and the spans of its median step."""
    middle = sorted(steps, key=lambda step: step.seconds)[(len(steps) - 1) // 2].timeline
    parts = [breakdown(step.timeline, pipe.schedule) for step in steps]
    return {
        "metrics": {
            "step_s": [step.seconds for step in steps],
            "loss": [step.loss for step in steps],
            "bubble_idle_over_total": [step.timeline.bubble_over_total for step in steps],
            "bubble_idle_over_work": [step.timeline.bubble_over_work for step in steps],
            "breakdown": {name: statistics.mean(part[name] for part in parts) for name in parts[0]},
            "peak_bytes": peaks,
            "balance": list(pipe.balance),
            "setup_s": setup,
            "unit": model.unit,
            "labels": dict(model.labels),
        },
        "timeline": middle.to_rows(),
    }


def _device(kind: str, rank: int) -> torch.device:
    """This rank's device; ranks of one host take its GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
