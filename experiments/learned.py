"""What trainings recorded, for their reports: metrics, and verdicts on differences."""

from collections.abc import Sequence
from math import isnan, nan

from repro.harness.results import Run
from repro.harness.schema import LearnRound
from repro.harness.statistics import mean_interval

TREND, NOT_SHOWN, TOO_FEW = "trend", "not shown at this size", "too few seeds"
REVERSED = "reversed at this size"


def metric(run: Run, name: str) -> float:
    """A metric on test data after the last step, such as "bleu"; NaN where it was not measured."""
    record = run.rounds[-1].record if run.rounds else None
    value = record.metrics.get(name) if isinstance(record, LearnRound) else None
    return nan if value is None else value


def parameters(run: Run) -> float:
    """Of the trained model; NaN where nothing was trained."""
    record = run.rounds[-1].record if run.rounds else None
    return float(record.parameters) if isinstance(record, LearnRound) else nan


def verdict(differences: Sequence[float]) -> str:
    """Whether the 95 % interval of the mean difference lies above 0, holds it, or lies below it."""
    _, low, high = mean_interval(list(differences))
    if isnan(low):
        return TOO_FEW
    if high < 0:
        return REVERSED
    return TREND if low > 0 else NOT_SHOWN
