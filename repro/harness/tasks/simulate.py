"""Simulated runs: a schedule on a virtual clock, with durations from a cost model.

Layer times come from a device's profile, or from layers that wait for known times. Of a profile it
is recorded too what the step takes where less counts.
"""

import time
from typing import Any

from repro.gpipe import breakdown
from repro.harness.job import Job, Measured
from repro.harness.predict import Included, Roofline, predict, source_of
from repro.harness.schema import Modelled, TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.setup import facts_of

# What counts up to a cause of the step's time: all but messages, then these too.
CAUSES = {"launch": Included(link=False), "transfer": Included()}
# Bounds of a step's time. Fused: a compiler makes every other operator a part of a matrix product,
# which then takes no time of its own.
BOUNDS = {
    "fused": Included(terms=("matmul", "padding")),
    "fused and folded": Included(terms=("matmul", "padding"), folded=True),
}


def run(job: Job, _rank: int, _groups: list[Any]) -> Measured:
    return simulated(job.spec, job.device)


def simulated(spec: RunSpec, device: str) -> Measured:
    """One simulated run; `device` says whose operators are counted.

    Where not even micro-batches of one example stay within the memory, the record has no steps.
    """
    began = time.perf_counter()
    source = source_of(spec, device)
    found = predict(spec, source)
    n, timeline, model = found.examples, found.timeline, source.model
    assert model is not None
    explained: dict[str, Any] = {"rungs": {}}
    if n and isinstance(source, Roofline):
        at_n = spec.model_copy(update={"N": n * spec.M, "memory": None})
        explained = _explained(at_n, source)
    facts = facts_of(model, began)
    if spec.profile:
        facts["labels"]["device"] = spec.profile
    record = TrainRound(
        step_s=[found.step_s] if n else [],
        loss=[],
        bubble_idle_over_total=[timeline.idle_over_total if n else None],
        bubble_idle_over_work=[timeline.idle_over_work if n else None],
        breakdown={**breakdown(timeline, spec.make_schedule())} if n else {},
        peak_bytes=found.peaks,
        balance=list(found.counts),
        modelled=Modelled(batch=n * spec.M, stages=found.costs, memory=source.memory, **explained),
        **facts,
    )
    return Measured(record, timeline if n and spec.trace else None)


def _explained(spec: RunSpec, source: Roofline) -> dict[str, Any]:
    """Causes and bounds of a step, each time with its best cut."""

    def step_s(included: Included) -> float:
        return predict(spec, source.changed(included=included)).step_s

    return {
        "rungs": {cause: step_s(included) for cause, included in CAUSES.items()},
        "bounds": {name: step_s(included) for name, included in BOUNDS.items()},
    }
