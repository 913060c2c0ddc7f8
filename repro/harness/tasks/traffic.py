"""The task "traffic": count what each device sends in a step."""

import time
from typing import Any

from repro.harness.request import Request, Result
from repro.harness.schema import TrafficRound
from repro.harness.tasks.setup import facts_of, setup_of
from repro.methods.counted import count
from repro.models import build


def run(request: Request, rank: int, groups: list[Any]) -> Result:
    spec = request.spec
    began = time.perf_counter()
    model = build(spec.model, **spec.arguments)
    inputs, _ = model.batch(spec.N // spec.D, spec.seed)
    setup = setup_of(request, model, inputs, rank, groups)
    balance = setup.counts()
    devices = spec.K * spec.D * (spec.tensor_parallel or 1)
    counted = count(spec.library, model.layers, setup.sample, devices, spec.M, balance)
    record = TrafficRound(
        sent_bytes=counted.sent,
        undivided=counted.undivided,
        balance=list(balance),
        **facts_of(model, began),
    )
    return Result(record)
