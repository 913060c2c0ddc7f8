"""The task "traffic": count what each device sends in a step."""

import time
from typing import Any

from repro.costs.counter import Counter
from repro.gpipe.partition.partition import PARTITIONERS, SMALLEST_LARGEST, additive
from repro.gpipe.tree import split
from repro.harness.job import Job, Measured
from repro.harness.predict import counted_costs
from repro.harness.schema import TrafficRound
from repro.harness.tasks.setup import facts_of
from repro.methods.counted import count
from repro.models import build


def run(job: Job, _rank: int, _groups: list[Any]) -> Measured:
    spec = job.spec
    began = time.perf_counter()
    model = build(spec.model, **spec.arguments)
    inputs, _ = model.batch(spec.N // spec.D, spec.seed)
    sample = split(inputs, spec.M)[0]
    costs = counted_costs(Counter(model.layers, model.loss), sample)
    balance = PARTITIONERS[SMALLEST_LARGEST](additive(costs["flops"]), len(model.layers), spec.K)
    devices = spec.K * spec.D * (spec.tensor_parallel or 1)
    counted = count(spec.library, model.layers, sample, devices, spec.M, balance)
    record = TrafficRound(
        sent_bytes=counted.sent,
        undivided=counted.undivided,
        balance=list(balance),
        **facts_of(model, began),
    )
    return Measured(record)
