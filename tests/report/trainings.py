"""Made-up records of trainings, for tests of their reports."""

from collections.abc import Mapping
from typing import Any

from repro.harness.job import Measured
from repro.harness.schema import round_record


def trained(metrics: Mapping[str, float], parameters: int = 1000, **labels: Any) -> Measured:
    """The record of a training with these metrics on its test data."""
    record = {
        "task": "learn",
        "loss": [2.0, 1.0],
        "metrics": dict(metrics),
        "parameters": parameters,
        "seconds": 1.0,
        "examples": 64,
        "digest": "0" * 64,
        "balance": [2, 3],
        "setup_s": 0.1,
        "unit": "sequences/s",
        "labels": labels,
    }
    return Measured(round_record(record))
