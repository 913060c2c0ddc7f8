"""Train: build, warm up, time, read the memory.

A step lasts from the first stage's start, after a barrier, to the last stage's end, its device
included, whether it is traced or not. Peak memory is read in a step of its own, which is not timed,
because reading it slows a step down.
"""

import gc
import math
import statistics
import time
from dataclasses import replace
from typing import Any, NamedTuple

from repro.gpipe import NonFiniteError, Timeline, breakdown
from repro.gpipe.core.microbatch import split
from repro.gpipe.schedule import collector
from repro.harness.job import Job, Measured
from repro.harness.schema import TrainRound
from repro.harness.tasks.emulate import stand_in
from repro.harness.tasks.setup import facts_of, setup_of
from repro.methods import make
from repro.methods.method import Method
from repro.models import build


class Step(NamedTuple):
    """One timed step."""

    seconds: float  # until the slowest stage has ended
    loss: float  # mean over the mini-batch
    timeline: Timeline | None  # spans of all stages; None without a trace


def run(job: Job, rank: int, groups: list[Any]) -> Measured:
    """Warm up, time the steps, read the memory; with the spans of the median traced step."""
    started = time.perf_counter()
    spec = job.spec
    if job.costs:
        (model, throttle), examples = stand_in(job.costs), spec.M
    else:
        model, throttle, examples = build(spec.model, **spec.arguments), None, spec.N
    inputs, targets = model.batch(examples, spec.seed)
    if spec.D > 1:
        replica = rank // (spec.K * (spec.tensor_parallel or 1))
        inputs, targets = (split(tree, spec.D)[replica] for tree in (inputs, targets))
    setup = setup_of(job, model, inputs, rank, groups)
    if job.costs:
        config = replace(setup.config, balance="uniform", throttle=throttle)
        setup = replace(setup, config=config)
    method = make(spec.library, setup)
    try:
        for _ in range(spec.warmup):
            _refuse_nonfinite(method.train_step(inputs, targets).loss, job)
        gc.collect()
        facts = facts_of(model, started)
        with collector.paused():  # as timeit does
            steps = [_timed_step(method, inputs, targets, spec.trace) for _ in range(spec.steps)]
        for step in steps:
            _refuse_nonfinite(step.loss, job)
        timelines = [step.timeline for step in steps if step.timeline is not None]
        parts = [breakdown(timeline, spec.make_schedule()) for timeline in timelines] or [{}]
        record = TrainRound(
            step_s=[step.seconds for step in steps],
            loss=[step.loss for step in steps],
            bubble_idle_over_total=[each.bubble_over_total for each in timelines] or [None],
            bubble_idle_over_work=[each.bubble_over_work for each in timelines] or [None],
            breakdown={name: statistics.mean(part[name] for part in parts) for name in parts[0]},
            balance=list(method.balance),
            **method.asynchrony(),
            peak_bytes=method.peak_bytes(inputs, targets) if job.memory else None,
            sent_bytes=method.sent_bytes(inputs, targets) if job.memory else None,
            **facts,
        )
    finally:
        method.close()
    by_length = sorted(timelines, key=lambda timeline: timeline.step_time)
    return Measured(record, by_length[(len(by_length) - 1) // 2] if by_length else None)


def _timed_step(method: Method, inputs: Any, targets: Any, trace: bool) -> Step:
    """One step after a barrier; collecting spans or times is not counted."""
    method.gather(None)
    result = method.train_step(inputs, targets, trace=trace)
    if trace:
        return Step(result.seconds, result.loss, result.timeline)
    # All on one clock; with a peer library only if all stages run on one host.
    times = method.gather((result.start, result.end))
    # Other stages may leave the barrier a little earlier; they wait for the first stage.
    return Step(max(end for _, end in times) - times[0][0], result.loss, None)


def _refuse_nonfinite(loss: float, job: Job) -> None:
    """Raise a NonFiniteError where a peer library trains on; our own raises a fuller one itself."""
    if not (math.isfinite(loss) or job.allow_nonfinite):
        raise NonFiniteError(
            f"the loss is {loss}; lower the learning rate; --allow-nonfinite records it"
        )
