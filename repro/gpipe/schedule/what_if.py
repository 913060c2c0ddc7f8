"""Why a step takes as long as it does: its critical path, and what changes to the run would give.

Pure: no torch, no clock. A change is never run. It is replayed with the costs of the recorded step.
The unchanged schedule is replayed in the same way, and the difference between that and the recorded
step tells how far to trust the predictions.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.critical import critical_path, find_causes
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Span, Timeline

BALANCE, DOUBLED, NEVER, LINK = "better balance", "M doubled", "nothing recomputed", "free link"
CHANGES = {  # name -> what its prediction assumes
    BALANCE: "all stages take equally long; or the cut as it is, if that is faster",
    DOUBLED: "same N; assumes that a micro-batch of half the size takes half the time",
    NEVER: "keeps all activations: costs memory",
    LINK: "messages arrive at once; what sending costs the stage stays",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a run, of `CHANGES`, and what it would give.

    `step_s` is the changed step in seconds, and `factor` the unchanged one over that; both are
    replayed.
    """

    name: str
    step_s: float
    factor: float


@dataclass(frozen=True)
class Explanation:
    """A step explained."""

    timeline: Timeline
    schedule: Schedule
    costs: "Costs"
    path: tuple[Span, ...]  # the critical one
    base_s: float  # the unchanged schedule replayed
    changes: tuple[Change, ...]  # all that this run allows, the greatest gain first

    @classmethod
    def of(
        cls, timeline: Timeline, schedule: Schedule, examples: int | None = None
    ) -> "Explanation":
        """Explain a recorded training step; a ValueError if the spans are not the schedule's.

        No more micro-batches are tried than there are examples in one replica's mini-batch.
        """
        costs = Costs.of(timeline, schedule)
        path, base = critical_path(timeline, schedule), costs.step(schedule)
        steps = sorted(_changed_steps(costs, schedule, examples).items(), key=itemgetter(1))
        changes = tuple(Change(name, step, base / step) for name, step in steps)
        return cls(timeline, schedule, costs, path, base, changes)


def _changed_steps(costs: "Costs", schedule: Schedule, examples: int | None) -> dict[str, float]:
    """Name -> seconds of a step, for every change that concerns this run."""
    M, checkpoint = schedule.micro_batches, schedule.checkpoint

    def like(micro_batches: int, checkpoint: str) -> Schedule:
        """The same kind of schedule with another M or checkpoint mode."""
        held = schedule.stages_per_rank
        return make_schedule(schedule.name, schedule.stages, micro_batches, checkpoint, held)

    steps: dict[str, float] = {}
    if len(schedule.ranks) > 1:
        # Equal stages are not always the best. Where R hides in waiting on all stages but the last,
        # above all with M=1, the last stage should have less than its part. So the cut as it is
        # counts as a balance too.
        steps[BALANCE] = min(costs.step(schedule, even=True), costs.step(schedule))
        if examples is None or examples >= 2 * M:
            steps[DOUBLED] = costs.step(like(2 * M, checkpoint), 1 / 2)
        steps[LINK] = costs.step(schedule, free=True)
    if checkpoint != "never":
        steps[NEVER] = costs.step(like(M, "never"))
    return steps


@dataclass(frozen=True)
class Costs:
    """What the actions of one step took.

    Attributes:
        seconds: (kind, stage) -> mean of the actions of a kind. R of a stage that recomputed
            nothing is taken to be its F.
        gaps: stage -> median seconds between a span and the next one that waited for no message.
        latencies: (sending rank, receiving rank) -> median seconds from the end of the action that
            makes a message to the start of the one that waited for it.
        around: seconds of the step before the first F and after the last B or W: set-up, agreement
            and update.
    """

    seconds: dict[tuple[str, int], float]
    gaps: dict[int, float]
    latencies: dict[tuple[int, int], float]
    around: float

    @classmethod
    def of(cls, timeline: Timeline, schedule: Schedule) -> "Costs":
        """Those of a recorded step; a ValueError if its spans are not the schedule's."""
        work = [s for s in timeline.spans if s.kind in COMPUTE]
        planned = [a for rank in range(len(schedule.ranks)) for a in schedule.work(rank)]
        if _counted(work) != _counted(planned) or timeline.step_time <= 0:
            raise ValueError(
                f"its spans are not those of its schedule '{schedule.name}'; measure it again with "
                "--force"
            )
        lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span in work:
            lengths[span.kind, span.stage].append(span.seconds)
        seconds = {key: fmean(values) for key, values in lengths.items()}
        gaps: dict[int, list[float]] = {j: [] for j in range(timeline.stages)}
        for j in gaps:
            seconds.setdefault(("R", j), seconds["F", j])
        latencies: dict[tuple[int, int], list[float]] = {
            (action.rank, action.peer): []
            for actions in schedule.ranks
            for action in actions
            if action.kind == "Send"
        }
        for span, (cause, wait) in find_causes(timeline, schedule).items():
            if span.kind not in COMPUTE or cause is None or cause.kind not in COMPUTE:
                continue
            waited = max(0.0, span.start - cause.end)
            if wait == "gap":
                gaps[cause.stage].append(waited)
            else:
                link = cause.stage % timeline.ranks, span.stage % timeline.ranks
                latencies[link].append(waited)
        inside = max(s.end for s in work) - min(s.start for s in work)
        return cls(seconds, _medians(gaps), _medians(latencies), timeline.step_time - inside)

    def step(
        self, schedule: Schedule, part: float = 1.0, *, even: bool = False, free: bool = False
    ) -> float:
        """Seconds of a step with these costs.

        `part` is the share of its seconds that an action takes, as the micro-batch is smaller; gaps
        and latencies stay. With `even` every stage takes the mean over stages, with `free` messages
        arrive at once.
        """
        lengths: dict[str, list[float]] = defaultdict(list)
        for (kind, _), seconds in self.seconds.items():
            lengths[kind].append(seconds)
        mean = {kind: fmean(values) for kind, values in lengths.items()}

        # A stage is not free before the gap after its action is over, so the gap is replayed as
        # part of the action. A message leaves before the gap, hence the subtraction.
        def duration(action: Action) -> float:
            seconds = mean[action.kind] if even else self.seconds[action.kind, action.stage]
            return part * seconds + self.gaps[action.stage]

        def crossing(send: Action) -> Crossing:
            latency = 0.0 if free else self.latencies[send.rank, send.peer]
            return Crossing(latency=latency - self.gaps[send.stage])

        spans = replay(schedule, duration, crossing).spans
        return self.around + max(s.end - self.gaps[s.stage] for s in spans)


def _counted(work: Iterable[Span | Action]) -> Counter[tuple[str, int, int]]:
    return Counter((each.kind, each.stage, each.micro_batch) for each in work)


def _medians(samples: dict[Any, list[float]]) -> dict[Any, float]:
    """The median of each; where there is no sample that over all, and 0 where there is none."""
    everywhere = [value for values in samples.values() for value in values]
    default = median(everywhere) if everywhere else 0.0
    return {key: median(values) if values else default for key, values in samples.items()}
