"""Estimates of how long the rest takes, from the `minutes` of experiments and this session."""

import statistics
from collections import Counter
from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

from repro.harness.spec import TIMED


class Kind(NamedTuple):
    """Runs that take about equally long."""

    experiment: str
    group: str
    fidelity: str


class TimeLeft:
    """Estimates the seconds of the runs that are left, by the plan and by the runs that ended.

    The planned seconds have the weight of a quarter of the runs that are left, so that a cold first
    run does not change the estimate much.
    """

    def __init__(self, planned: Iterable[tuple[Kind, float]]) -> None:
        each = Counter(planned)
        self._left = Counter({kind: count for (kind, _), count in each.items()})
        self._took = {k: [seconds] * ceil(n / 4) for (k, seconds), n in each.items() if seconds}

    def done(self, kind: Kind, seconds: float | None) -> None:
        """Count a measurement as done; `seconds` is None if it was left out."""
        self._left[kind] -= 1
        if seconds is not None:
            self._took.setdefault(kind, []).append(seconds)

    @property
    def seconds(self) -> float | None:
        """Seconds of all runs that are left; None if a kind of timed runs has no estimate yet."""
        left = {kind: count for kind, count in self._left.items() if count > 0}
        if any(kind.fidelity in TIMED and kind not in self._took for kind in left):
            return None
        mean = {kind: statistics.mean(seconds) for kind, seconds in self._took.items()}
        return sum(count * mean.get(kind, 0.0) for kind, count in left.items())
