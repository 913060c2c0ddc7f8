"""Check: hold a library against the unsplit model."""

import time
from dataclasses import asdict
from functools import partial
from typing import Any

from repro.harness.job import Job
from repro.harness.tasks.setup import setup_of
from repro.harness.tasks.train import metrics
from repro.methods import make
from repro.methods.checks import examine
from repro.models import build


def run(job: Job, rank: int, groups: list[Any]) -> dict[str, Any]:
    """Hold the library against the unsplit model."""
    started = time.perf_counter()
    spec = job.spec
    model = build(spec.model, **spec.arguments)
    setup = setup_of(job, model, model.batch(spec.N, spec.seed)[0], rank, groups)
    found = examine(
        partial(make, spec.library), setup, model.batch, spec.N, spare=(groups or [None])[-1]
    )
    line = metrics(model, spec, setup.counts(), [], None, time.perf_counter() - started)
    line["metrics"]["checks"] = {name: asdict(check) for name, check in found.items()}
    return line
