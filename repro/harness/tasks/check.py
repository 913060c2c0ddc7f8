"""Check: hold a library against the unsplit model."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from repro.harness.job import Job, Measured
from repro.harness.schema import CheckRound, Finding
from repro.harness.tasks.setup import facts_of, setup_of
from repro.methods import make
from repro.methods.checks import examine
from repro.models import build


def run(job: Job, rank: int, groups: list[Any]) -> Measured:
    began = time.perf_counter()
    spec = job.spec
    model = build(spec.model, **spec.arguments)
    setup = setup_of(job, model, model.batch(spec.N, spec.seed)[0], rank, groups)
    spare = groups[-1] if groups else None
    checks = examine(partial(make, spec.library), setup, model.batch, spec.N, spare=spare)
    found = {name: Finding(**asdict(check)) for name, check in checks.items()}
    balance = list(setup.counts())
    return Measured(CheckRound(checks=found, balance=balance, **facts_of(model, began)))
