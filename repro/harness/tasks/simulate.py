"""Simulated runs: a schedule on a virtual clock, with durations from a cost model.

Layer times come from a device's profile, or from layers that wait for known times.
"""

import time
from typing import Any

from repro.harness.predict import predict, source_of
from repro.harness.request import Request, Result
from repro.harness.schema import Modelled, TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.setup import facts_of
from repro.simulate.breakdown import breakdown


def run(request: Request, _rank: int, _groups: list[Any]) -> Result:
    return simulated(request.spec, request.device)


def simulated(spec: RunSpec, device: str) -> Result:
    """One simulated run; `device` is the kind whose operators are counted.

    Where not even micro-batches of one example stay within the memory, the record has no steps.
    """
    began = time.perf_counter()
    source = source_of(spec, device)
    found = predict(spec, source)
    n, timeline, model = found.examples, found.step, source.model
    facts = facts_of(model, began)
    if spec.profile:
        facts["labels"]["device"] = spec.profile
    record = TrainRound(
        step_s=[found.step_s] if n else [],
        loss=[],
        bubble_idle_over_total=[timeline.idle_over_total if n else None],
        breakdown={**breakdown(timeline, spec.make_schedule())} if n else {},
        peak_bytes=found.peaks,
        balance=list(found.counts),
        modelled=Modelled(batch=n * spec.M, stages=found.costs, memory=source.memory),
        **facts,
    )
    return Result(record, timeline if n and spec.trace else None)
