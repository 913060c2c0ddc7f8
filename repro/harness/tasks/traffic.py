"""The task "traffic": count what each device sends in a step."""

import time
from typing import Any

from repro.gpipe.core.microbatch import split
from repro.harness.job import Job, Measured
from repro.harness.schema import TrafficRound
from repro.harness.tasks.setup import facts_of
from repro.methods.counted import count
from repro.models import build


def run(job: Job, _rank: int, _groups: list[Any]) -> Measured:
    spec = job.spec
    began = time.perf_counter()
    model = build(spec.model, **spec.arguments)
    inputs, _ = model.batch(spec.N // spec.D, spec.seed)
    devices = spec.K * spec.D * (spec.tensor_parallel or 1)
    counted = count(spec.library, model.layers, split(inputs, spec.M)[0], devices, spec.M)
    record = TrafficRound(
        sent_bytes=counted.sent,
        undivided=counted.undivided,
        balance=[len(model.layers)],
        **facts_of(model, began),
    )
    return Measured(record)
