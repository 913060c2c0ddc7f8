"""Estimates of how long runs take, from the experiment, recorded rounds and this session."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from math import ceil
from typing import NamedTuple

from repro.harness.schema import RoundEvent
from repro.harness.spec import TIMED


class Kind(NamedTuple):
    """Runs that take about equally long."""

    experiment: str
    group: str
    fidelity: str


def declared_seconds(wanted: Counter[Kind], minutes: float) -> dict[Kind, float]:
    """Seconds of one run in one round, by the `minutes` of an experiment.

    `wanted` is how many runs of each kind all rounds of the experiment have here.
    """
    timed = _timed(wanted)
    return dict.fromkeys(timed, 60 * minutes / max(1, timed.total()))


def recorded_seconds(kinds: Mapping[str, Kind], events: Iterable[RoundEvent]) -> dict[Kind, float]:
    """The same, by the median of the rounds that this machine has recorded of such runs."""
    recorded: dict[Kind, list[float]] = {}
    for event in events:
        span = datetime.fromisoformat(event.ended) - datetime.fromisoformat(event.started)
        seconds = max(0.0, span.total_seconds())  # clocks may be set back
        timed = _timed(Counter(kinds[run] for run in event.records if run in kinds))
        for kind in timed:
            recorded.setdefault(kind, []).append(seconds / timed.total())
    return {kind: statistics.median(each) for kind, each in recorded.items()}


def _timed(kinds: Counter[Kind]) -> Counter[Kind]:
    """Those that a clock times, if there are any: nearly all seconds are theirs."""
    return Counter({kind: n for kind, n in kinds.items() if kind.fidelity in TIMED}) or kinds


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
