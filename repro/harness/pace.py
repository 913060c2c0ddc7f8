"""How long runs take: as recorded here, else as the experiment estimates, and as this start has seen since."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from repro.harness.schema import Marker
from repro.harness.spec import TIMED, Experiment, Scale

# seconds for a run on no clock, simulated or counted; most of it is recording and mirroring
UNTIMED = 0.5
_START_UP = 5.0  # CPU seconds for one worker to import and to join the others
_TRUST = 5  # a pace that is known before the start counts as much as this many runs seen since
_SETTLED = 60.0  # seconds of runs before their own speed counts as much as what was expected


class Kind(NamedTuple):
    """Runs that take about as long: those of one group at one fidelity."""

    experiment: str
    group: str
    fidelity: str


def of_kinds(
    experiment: Experiment,
    scale: Scale,
    rounds: Mapping[str, int],
    fidelities: Mapping[str, str],
    markers: Iterable[Marker],
) -> dict[Kind, float]:
    """Seconds for one run in one round of each kind: the median of recorded rounds, else the experiment's estimate.

    Args:
        experiment: whose runs they are.
        scale: which of its estimates counts.
        rounds: run id -> in how many rounds it takes part; without the runs that cannot be measured
            here.
        fidelities: run id -> fidelity, of all runs.
        markers: those of the recorded rounds.

    Returns:
        The pace of each kind; 0 where nothing is known.
    """
    seen = _recorded(experiment.name, fidelities, markers)
    untimed = sum(count for run, count in rounds.items() if fidelities[run] not in TIMED)
    timed = sum(rounds.values()) - untimed
    whole = 60 * experiment.minutes.get(scale, 0.0)
    # Short estimates are of few seconds for each run.
    for_untimed = min(UNTIMED, whole / (2 if timed else 1) / max(1, untimed))
    for_timed = (whole - for_untimed * untimed) / max(1, timed)
    groups = {(group.name, run.fidelity) for group in experiment.groups for run in group.runs}
    kinds = [Kind(experiment.name, *place) for place in groups]
    guess = {kind: for_timed if kind.fidelity in TIMED else for_untimed for kind in kinds}
    return {kind: statistics.median(seen[kind]) if kind in seen else guess[kind] for kind in kinds}


def start_up(workers: int, cores: int) -> float:
    """Seconds until this many workers are there."""
    return _START_UP * max(1.0, workers / cores)


class TimeLeft:
    """Seconds that outstanding measurements will take.

    A cold first run is one among many: what was known before the start keeps its weight, and only
    what a run has taken itself counts much for its next rounds.
    """

    def __init__(
        self, outstanding: Iterable[tuple[Kind, str]], pace: Mapping[Kind, float], start_up: float
    ) -> None:
        self._left = Counter(outstanding)
        self._pace = pace
        self._start_up = start_up
        self._took: dict[tuple[Kind, str], list[float]] = {}

    def started(self) -> None:
        """The workers are there."""
        self._start_up = 0.0

    def done(self, kind: Kind, run: str, seconds: float | None) -> None:
        """One measurement less; `seconds` is None where it was left out."""
        self._left[kind, run] -= 1
        if seconds is not None:
            self._took.setdefault((kind, run), []).append(seconds)

    @property
    def seconds(self) -> float:
        """About how many are left."""
        paces = {kind: self._pace_now(kind) for kind, _ in self._left}
        return self._start_up + sum(
            count * self._each(place, paces) for place, count in self._left.items()
        )

    def _each(self, place: tuple[Kind, str], paces: Mapping[Kind, float]) -> float:
        own = self._took.get(place, [])
        return (paces[place[0]] + sum(own)) / (1 + len(own))

    def _pace_now(self, kind: Kind) -> float:
        """For a run of this kind that was not measured yet."""
        seen = [
            seconds for (other, _), took in self._took.items() if other == kind for seconds in took
        ]
        known = self._pace.get(kind, 0.0)
        if not known:
            return statistics.fmean(seen) if seen else 0.0
        slower = self._slower() if kind.fidelity in TIMED else 1.0
        return (_TRUST * slower * known + sum(seen)) / (_TRUST + len(seen))

    def _slower(self) -> float:
        """How much slower timed runs are than was expected."""
        took = {
            place: seconds for place, seconds in self._took.items() if place[0].fidelity in TIMED
        }
        expected = sum(len(took[place]) * self._pace.get(place[0], 0.0) for place in took)
        if not expected:
            return 1.0
        return (_SETTLED + sum(map(sum, took.values()))) / (_SETTLED + expected)


def _recorded(
    experiment: str, fidelities: Mapping[str, str], markers: Iterable[Marker]
) -> dict[Kind, list[float]]:
    """Seconds for one run of each kind in every recorded round; of runs of several fidelities timed ones took them."""
    seen: dict[Kind, list[float]] = {}
    for marker in markers:
        span = datetime.fromisoformat(marker.ended) - datetime.fromisoformat(marker.started)
        seconds = max(0.0, span.total_seconds())  # clocks may be set back
        count = Counter(fidelities[run] for run in marker.runs if run in fidelities)
        timed = sum(count[fidelity] for fidelity in TIMED)
        untimed = count.total() - timed
        for fidelity in count:
            if not timed or not untimed:
                pace = seconds / count.total()
            elif fidelity in TIMED:
                pace = max(0.0, seconds - UNTIMED * untimed) / timed
            else:
                pace = min(UNTIMED, seconds / count.total())
            seen.setdefault(Kind(experiment, marker.group, fidelity), []).append(pace)
    return seen
