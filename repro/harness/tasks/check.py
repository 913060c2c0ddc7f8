"""Check: hold a library against the unsplit model."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from repro.harness.job import Job, Measured
from repro.harness.schema import CheckRound, Finding
from repro.harness.tasks.setup import setup_of
from repro.methods import make
from repro.methods.checks import examine
from repro.models import build


def run(job: Job, rank: int, groups: list[Any]) -> Measured:
    """Hold the library against the unsplit model."""
    started = time.perf_counter()
    spec = job.spec
    model = build(spec.model, **spec.arguments)
    setup = setup_of(job, model, model.batch(spec.N, spec.seed)[0], rank, groups)
    checks = examine(
        partial(make, spec.library), setup, model.batch, spec.N, spare=(groups or [None])[-1]
    )
    record = CheckRound(
        checks={name: Finding(**asdict(check)) for name, check in checks.items()},
        balance=list(setup.counts()),
        setup_s=time.perf_counter() - started,
        unit=model.unit,
        labels=dict(model.labels),
    )
    return Measured(record)
