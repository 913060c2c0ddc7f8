"""What trainings recorded, for their reports."""

from math import nan

from repro.harness.results import Run
from repro.harness.schema import LearnRound


def metric(run: Run, name: str) -> float:
    """A metric on test data after the last step, such as "bleu"; NaN where it was not measured."""
    record = run.rounds[-1].record if run.rounds else None
    value = record.metrics.get(name) if isinstance(record, LearnRound) else None
    return nan if value is None else value


def parameters(run: Run) -> float:
    """Of the trained model; NaN where nothing was trained."""
    record = run.rounds[-1].record if run.rounds else None
    return float(record.parameters) if isinstance(record, LearnRound) else nan
