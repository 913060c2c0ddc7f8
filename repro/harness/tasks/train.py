"""Train: build, warm up, time step against step, read the memory.

A step lasts from the first stage's start, after a barrier, to the last stage's end, its device
included, whether it is traced or not. Peak memory is read in a step of its own, which is not timed,
because reading it slows a step down.

The runs of a group are measured together. What disturbs this machine lasts longer than a step, so
steps beside each other are disturbed alike, and their quotient is not.
"""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from repro.gpipe import NonFiniteError, Timeline
from repro.gpipe.tree import split
from repro.harness.cut import cut_key
from repro.harness.request import Request, Result
from repro.harness.schema import TrainRound
from repro.harness.statistics import MIN_BLOCKS, decided
from repro.harness.tasks.setup import device_of, drawn_on, facts_of, setup_of
from repro.methods import make
from repro.models import build
from repro.simulate.breakdown import breakdown

# Going through all objects of all runs takes longer than many a block.
_BLOCKS_BETWEEN_COLLECTIONS = 10


class Step(NamedTuple):
    """One timed step."""

    seconds: float  # until the slowest stage has ended
    loss: float  # mean over the mini-batch
    timeline: Timeline | None  # spans of all stages; None without a trace


# What rank 0 decides after a block, on all ranks: it alone has the times of all runs.
Agree = Callable[[int, Callable[[], list[int]]], list[int]]


def run(
    requests: Sequence[Request],
    rank: int,
    groups: Sequence[list[Any]],
    at: Callable[[int], object],
    agree: Agree,
) -> list[Result]:
    """Build all runs, warm them up, and measure blocks of one step of each, in random order.

    Runs of the same M, which will be compared most, stay next to each other. `groups` are the
    process groups of each run. The order is the same on all ranks, and the steps of a record are
    those of the first blocks: a run may leave early, see `going_on`.
    """
    trainings: dict[int, Training] = {}
    cuts = {cut_key(each.spec): each.balance for each in requests if each.balance}
    for index, request in enumerate(requests):
        at(index)
        if rank < request.spec.devices:
            cut = request.balance
            if request.spec.balance == "time":  # the first such run measures it
                cut = cuts.get(cut_key(request.spec))
            trainings[index] = Training(replace(request, balance=cut), rank, groups[index])
            cuts[cut_key(request.spec)] = tuple(trainings[index].balance)
    orders = random.Random(requests[0].order)
    going = [*range(len(requests))]
    gc.disable()  # as timeit does
    for block in range(max(request.spec.steps for request in requests)):
        if block % _BLOCKS_BETWEEN_COLLECTIONS == 0:
            gc.collect()
        members = [index for index in going if block < requests[index].spec.steps]
        place = {request.spec.M: orders.random() for request in requests}
        orders.shuffle(members)
        members.sort(key=lambda index: place[requests[index].spec.M])
        for index in members:
            at(index)
            if index in trainings:
                trainings[index].step()
        if block + 1 >= MIN_BLOCKS:
            seconds = {index: training.seconds for index, training in trainings.items()}
            going = agree(block, partial(going_on, requests, going, seconds))
    gc.enable()
    measured = []
    for index, training in trainings.items():
        at(index)
        measured.append(training.measured())
    for training in trainings.values():
        training.close()
    return measured


def going_on(
    runs: Sequence[Request], going: Sequence[int], seconds: Mapping[int, Sequence[float]]
) -> list[int]:
    """Which of the runs that take part so far take another block.

    A run does if one of its ratios is not decided. With such runs go those that they are divided
    by, all controls, and runs without a ratio. If no run but a control has a ratio, all go on.
    """
    if not any(run.bases and not run.spec.control for run in runs):
        return [*going]

    def is_open(index: int, base: int) -> bool:
        # A base leaves only when ratios to it are decided; one more block may blur them again.
        pairs = zip(seconds[base], seconds[index], strict=False)
        return base in going and not decided([math.log(long / short) for long, short in pairs])

    needed: set[int] = set()
    for index in going:
        run = runs[index]
        if run.spec.control or len(seconds[index]) == run.spec.steps:
            continue
        if any(is_open(index, base) for base in run.bases):
            needed.add(index)
    if needed:
        needed |= {index for index in going if runs[index].spec.control or not runs[index].bases}
    needed |= {base for index in needed for base in runs[index].bases}
    return [index for index in going if index in needed]


class Training:
    """One run on this rank, built and warmed up, that is measured step by step."""

    def __init__(self, request: Request, rank: int, groups: list[Any]) -> None:
        began = time.perf_counter()
        self._request, spec = request, request.spec
        held = _held(request)
        model = drawn_on(device_of(request.device, rank), build(spec.model, **spec.arguments))
        self._batch = model.batch(spec.N, spec.seed)
        if spec.D > 1:
            inputs, targets = (split(tree, spec.D)[rank // spec.K] for tree in self._batch)
            self._batch = inputs, targets
        setup = replace(setup_of(request, model, self._batch[0], rank, groups), trace=spec.trace)
        self._method = make(spec.library, setup)
        self.balance = self._method.balance
        for _ in range(spec.warmup):
            self._refuse_nonfinite(self._timed().loss)
        self._steps: list[Step] = []
        self._own = _held(request) - held
        self._facts = facts_of(model, began)

    def step(self) -> None:
        self._steps.append(self._timed())
        self._refuse_nonfinite(self._steps[-1].loss)

    @property
    def seconds(self) -> list[float]:
        """Of each step so far."""
        return [step.seconds for step in self._steps]

    def measured(self) -> Result:
        """The record of all steps so far, with the spans of the median traced one."""
        spec, method, request = self._request.spec, self._method, self._request
        timelines = [step.timeline for step in self._steps if step.timeline is not None]
        parts = [breakdown(timeline, spec.make_schedule()) for timeline in timelines] or [{}]
        record = TrainRound(
            step_s=self.seconds,
            loss=[step.loss for step in self._steps],
            bubble_idle_over_total=[each.idle_over_total for each in timelines] or [None],
            breakdown={name: statistics.mean(part[name] for part in parts) for name in parts[0]},
            balance=list(self.balance),
            **method.asynchrony(),
            peak_bytes=self._peaks() if request.memory else None,
            sent_bytes=method.sent_bytes(*self._batch) if request.memory else None,
            **self._facts,
        )
        by_length = sorted(timelines, key=lambda timeline: timeline.step_time)
        median = by_length[(len(by_length) - 1) // 2] if by_length else None
        return Result(record, median)

    def close(self) -> None:
        self._method.close()

    def _timed(self) -> Step:
        """One step after a barrier; collecting spans or times is not counted."""
        method = self._method
        method.gather(None)
        result = method.train_step(*self._batch)
        if result.timeline is not None:
            return Step(result.seconds, result.loss, result.timeline)
        # All on one clock; with a peer library only if all stages run on one host.
        times = method.gather((result.start, result.end))
        # Other stages may leave the barrier a little earlier; they wait for the first stage.
        return Step(max(end for _, end in times) - times[0][0], result.loss, None)

    def _peaks(self) -> list[int] | None:
        """Peak memory of each stage without what the other runs hold on its device."""
        others = self._method.gather(_held(self._request) - self._own)
        peaks = self._method.peak_bytes(*self._batch)
        # Ranks are numbered replica after replica.
        return peaks and [p - max(others[j :: len(peaks)]) for j, p in enumerate(peaks)]

    def _refuse_nonfinite(self, loss: float) -> None:
        """Raise a NonFiniteError where a peer trains on; our own raises a fuller one itself."""
        if not math.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss}; lower the learning rate")


def _held(request: Request) -> int:
    """Bytes of the GPU that this process has handed out; the CPU's are counted by tensor."""
    return torch.cuda.memory_allocated() if request.device == "cuda" else 0
