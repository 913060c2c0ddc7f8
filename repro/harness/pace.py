"""Estimates of how long runs take: from recorded rounds, the experiment, and this session."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from repro.harness.schema import RoundEvent
from repro.harness.spec import TIMED

# Seconds of a simulated or counted run, most of them for recording and mirroring.
UNTIMED = 0.5
_START_UP = 5.0  # CPU seconds for one worker to import and to join the others


class Kind(NamedTuple):
    """Runs of an experiment that take about equally long."""

    group: str
    fidelity: str


def seconds_of(
    kinds: Mapping[str, Kind],
    rounds: Mapping[str, int],
    minutes: float,
    events: Iterable[RoundEvent],
) -> dict[Kind, float]:
    """Seconds of one run in one round, for each kind.

    It is the median of the rounds that this machine has recorded, else the experiment's estimate
    for all its runs, `minutes`, or 0. `kinds` has all runs, `rounds` has how often those are
    measured that can be here.
    """
    recorded = _recorded(kinds, events)
    timed = sum(count for run, count in rounds.items() if kinds[run].fidelity in TIMED)
    untimed_s = UNTIMED * (sum(rounds.values()) - timed)
    timed_s = max(0.0, 60 * minutes - untimed_s) / max(1, timed)
    estimated = {kind: timed_s if kind.fidelity in TIMED else UNTIMED for kind in kinds.values()}
    return estimated | {kind: statistics.median(each) for kind, each in recorded.items()}


def _recorded(kinds: Mapping[str, Kind], events: Iterable[RoundEvent]) -> dict[Kind, list[float]]:
    """Seconds of one run of each kind, one number per recorded round.

    In a round with timed and untimed runs nearly all seconds are those of the timed ones.
    """
    recorded: dict[Kind, list[float]] = {}
    for event in events:
        span = datetime.fromisoformat(event.ended) - datetime.fromisoformat(event.started)
        seconds = max(0.0, span.total_seconds())  # clocks may be set back
        count = Counter(kinds[run] for run in event.records if run in kinds)
        timed = {kind: number for kind, number in count.items() if kind.fidelity in TIMED}
        for kind in timed or count:
            recorded.setdefault(kind, []).append(seconds / sum((timed or count).values()))
    return recorded


def start_up(workers: int, cores: int) -> float:
    return _START_UP * max(1.0, workers / cores)


class TimeLeft:
    """Estimates the seconds of what is left, from how much longer than expected the rest took.

    The expectation keeps the weight of a quarter of all runs, so that a cold first run does not
    change the estimate much. A run of which none is known (0) is taken to be as long as the others.
    """

    def __init__(self, expected: Iterable[float], start_up: float) -> None:
        expected = list(expected)
        known = [seconds for seconds in expected if seconds]
        self._usual = statistics.mean(known) if known else 1.0
        self._start_up = start_up
        self._left = sum(seconds or self._usual for seconds in expected)
        self._expected = self._took = self._left / 4 if known else 0.0

    def started(self) -> None:
        self._start_up = 0.0

    def done(self, expected: float, seconds: float | None) -> None:
        """Count a measurement as done; `seconds` is None if it was left out."""
        self._left -= expected or self._usual
        if seconds is not None:
            self._expected += expected or self._usual
            self._took += seconds

    @property
    def seconds(self) -> float:
        """Of everything that is left; 0 where nothing says how long runs take."""
        if self._left and not self._expected:
            return 0.0
        slower = self._took / self._expected if self._expected else 0.0
        return self._start_up + round(slower * self._left, 3)
