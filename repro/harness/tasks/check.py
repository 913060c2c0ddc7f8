"""The task "check": compare a library with the unsplit model."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from repro.harness.request import Request, Result
from repro.harness.schema import CheckRound, Finding
from repro.harness.tasks.setup import facts_of, setup_of
from repro.methods import make
from repro.methods.checks import examine
from repro.models import build


def run(request: Request, rank: int, groups: list[Any]) -> Result:
    began = time.perf_counter()
    spec = request.spec
    model = build(spec.model, **spec.arguments)
    setup = setup_of(request, model, model.batch(spec.N, spec.seed)[0], rank, groups)
    checks = examine(partial(make, spec.library), setup, model.batch, spec.N)
    found = {name: Finding(**asdict(check)) for name, check in checks.items()}
    balance = list(setup.counts())
    return Result(CheckRound(checks=found, balance=balance, **facts_of(model, began)))
