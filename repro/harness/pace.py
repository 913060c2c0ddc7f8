"""Estimates of how long runs take: from recorded rounds, the experiment, and this session."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from repro.harness.schema import RoundEvent
from repro.harness.spec import TIMED, Experiment, Scale

# Seconds of a simulated or counted run, most of them for recording and mirroring.
UNTIMED = 0.5
_START_UP = 5.0  # CPU seconds for one worker to import and to join the others
_PRIOR_RUNS = 5  # a pace that is known before the start counts as much as this many runs


class Kind(NamedTuple):
    """Runs that take about equally long: those of one group at one fidelity."""

    experiment: str
    group: str
    fidelity: str


def of_kinds(
    experiment: Experiment,
    scale: Scale,
    rounds: Mapping[str, int],
    fidelities: Mapping[str, str],
    events: Iterable[RoundEvent],
) -> dict[Kind, float]:
    """Seconds of one run in one round, for each kind.

    It is the median of the rounds that this machine has recorded, else the experiment's estimate,
    or 0. `fidelities` has all runs, `rounds` has how often those are measured that can be here.
    """
    recorded = _recorded(experiment.name, fidelities, events)
    timed = sum(count for run, count in rounds.items() if fidelities[run] in TIMED)
    untimed_s = UNTIMED * (sum(rounds.values()) - timed)
    # An estimate is of everything, also of runs that no clock times.
    timed_s = max(0.0, 60 * experiment.minutes.get(scale, 0.0) - untimed_s)
    paces = {}
    for group in experiment.groups:
        for run in group.runs:
            kind = Kind(experiment.name, group.name, run.fidelity)
            if kind in recorded:
                paces[kind] = statistics.median(recorded[kind])
            else:
                paces[kind] = timed_s / max(1, timed) if run.fidelity in TIMED else UNTIMED
    return paces


def _recorded(
    experiment: str, fidelities: Mapping[str, str], events: Iterable[RoundEvent]
) -> dict[Kind, list[float]]:
    """Seconds of one run of each kind, one number per recorded round.

    In a round with timed and untimed runs nearly all seconds are those of the timed ones.
    """
    recorded: dict[Kind, list[float]] = {}
    for event in events:
        span = datetime.fromisoformat(event.ended) - datetime.fromisoformat(event.started)
        seconds = max(0.0, span.total_seconds())  # clocks may be set back
        count = Counter(fidelities[run] for run in event.records if run in fidelities)
        timed = {fidelity: count[fidelity] for fidelity in TIMED if fidelity in count}
        for fidelity in timed or count:
            kind = Kind(experiment, event.group, fidelity)
            recorded.setdefault(kind, []).append(seconds / sum((timed or count).values()))
    return recorded


def start_up(workers: int, cores: int) -> float:
    """Seconds until this many workers have started."""
    return _START_UP * max(1.0, workers / cores)


class TimeLeft:
    """Estimates the seconds of the outstanding measurements, group by group.

    The pace known before the start keeps its weight, so that a cold first run does not change the
    estimate much. Where none is known, the first runs give it.
    """

    def __init__(
        self, outstanding: Iterable[Kind], pace: Mapping[Kind, float], start_up: float
    ) -> None:
        self._left = Counter(outstanding)
        self._pace = pace
        self._start_up = start_up
        self._took: dict[Kind, list[float]] = {}

    def started(self) -> None:
        """The workers have started."""
        self._start_up = 0.0

    def done(self, kind: Kind, seconds: float | None) -> None:
        """Count a measurement as done; `seconds` is None if it was left out."""
        self._left[kind] -= 1
        if seconds is not None:
            self._took.setdefault(kind, []).append(seconds)

    @property
    def seconds(self) -> float:
        """Of everything that is left."""
        return self._start_up + sum(
            count * self._expected(kind) for kind, count in self._left.items()
        )

    def _expected(self, kind: Kind) -> float:
        took, known = self._took.get(kind, []), self._pace.get(kind, 0.0)
        weight = _PRIOR_RUNS if known else 0
        return (weight * known + sum(took)) / max(1, weight + len(took))
