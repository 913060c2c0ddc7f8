"""Why a step takes as long as it does: its critical path, and what changes to the run would give.

Pure: no torch, no clock. A change is never run. It is replayed with the costs of the recorded step.
The unchanged schedule is replayed in the same way, and the difference between that and the recorded
step tells how far to trust the predictions.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median
from typing import TypeVar

from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.critical import Leg, by_kind, critical_path, find_causes
from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule, schedule_from_orders
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Timeline

Key = TypeVar("Key")

BALANCE, LINK, EARLY, ORDER = "better balance", "free link", "recompute early", "1F1B order"
DOUBLED, QUADRUPLED = "M doubled", "M quadrupled"
NEVER, EXCEPT_LAST = "nothing recomputed", "recompute except last"
MORE = {DOUBLED: 2, QUADRUPLED: 4}
CHANGES = {  # name -> what its prediction assumes
    BALANCE: (
        "all stages take equally long, which whole layers rarely allow; or the cut as it is, if "
        "that is faster"
    ),
    DOUBLED: "same N; assumes that a micro-batch of half the size takes half the time",
    QUADRUPLED: "same N; assumes that a micro-batch a quarter as large takes a quarter of the time",
    EARLY: "R no longer waits for the gradient",
    NEVER: "keeps all activations: costs memory",
    EXCEPT_LAST: "no R where B directly follows F: keeps one more micro-batch's activations",
    LINK: "messages arrive at once; what sending costs the stage stays",
    ORDER: "fewer activations are kept at once",
}
_COSTS_MEMORY = (NEVER, EXCEPT_LAST)
_WORTH_NAMING = 1.02  # a smaller gain is not recommended, nor one within the error of the replay


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a run and what it would give.

    Attributes:
        name: one of `CHANGES`.
        step_s: the changed step in seconds, replayed.
        factor: the unchanged step over that, both replayed.
    """

    name: str
    step_s: float
    factor: float


@dataclass(frozen=True)
class Why:
    """A step explained.

    Attributes:
        timeline: of the step.
        schedule: what was run.
        path: its critical path.
        base_s: the unchanged schedule replayed, in seconds.
        changes: every change that this run allows, the greatest gain first.
    """

    timeline: Timeline
    schedule: Schedule
    path: tuple[Leg, ...]
    base_s: float
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, timeline: Timeline, schedule: Schedule, examples: int | None = None) -> "Why":
        """Explain a recorded step.

        Args:
            timeline: of one training step.
            schedule: what was run.
            examples: N of one replica; more micro-batches than that are not tried. None is no
                limit.

        Raises:
            ValueError: when the spans are not the schedule's, or take no time.
        """
        costs = Costs.of(timeline, schedule)
        base = costs.step(schedule)
        steps = _changed_steps(costs, schedule, examples)
        changes = [Change(name, step, base / step) for name, step in steps.items()]
        changes.sort(key=lambda change: change.step_s)
        path = critical_path(timeline, schedule)
        return cls(timeline, schedule, path, base, tuple(changes))

    @property
    def error(self) -> float:
        """The replayed step over the recorded one, minus 1."""
        return self.base_s / self.timeline.step_time - 1

    @cached_property
    def shares(self) -> dict[str, float]:
        """Kind -> its share of the critical path; they sum to 1."""
        return {
            kind: seconds / self.timeline.step_time for kind, seconds in by_kind(self.path).items()
        }

    def factor(self, name: str) -> float | None:
        """The gain of a change; None where it does not concern this run."""
        return next((change.factor for change in self.changes if change.name == name), None)

    @property
    def verdict(self) -> str:
        """One sentence: the best change that costs no memory, and keeping activations if better."""
        return self.verdict_without(())

    def verdict_without(self, disproved: Collection[str]) -> str:
        """The verdict when some changes, by their names, were tried and gave nothing."""
        left_out = (*_COSTS_MEMORY, *disproved)
        allowed = [change for change in self.changes if change.name not in left_out]
        best = max(allowed, key=lambda change: change.factor, default=None)
        gain = best.factor if best else 1.0
        threshold = max(_WORTH_NAMING, 1 + abs(self.error))
        if self.shares["gap"] > 1 - 1 / max(gain, threshold):
            runtime = f"{self.shares['gap']:.0%} of the critical path"
            sentence = f"the runtime: {runtime} is neither work nor a message"
        elif best and gain >= threshold:
            sentence = f"{self._advice(best.name)} {gain:.2f}x"
        else:
            sentence = self._no_advice(threshold, "other change" if disproved else "change")
        never = 1.0 if NEVER in disproved else self.factor(NEVER) or 1.0
        if never >= max(gain, threshold):
            sentence += (
                f"; keeping all activations instead of recomputing them would give {never:.2f}x"
            )
        return sentence

    def _advice(self, change: str) -> str:
        """The cause and the change against it, up to the gain."""
        stages, M = range(self.timeline.stages), self.schedule.micro_batches
        if change in MORE:
            idle = self.timeline.bubble_over_total
            return (
                f"stages idle {idle:.0%} of K x step: M={M * MORE[change]} instead of {M} at the "
                "same N would give about"
            )
        if change == BALANCE:
            work = [self.timeline.busy(j, COMPUTE) for j in stages]
            slowest = max(stages, key=lambda j: work[j])
            excess = work[slowest] / fmean(work) - 1
            return (
                f"stage {slowest} is {excess:.0%} slower than the mean: a better balance would "
                "give about"
            )
        if change == LINK:
            return (
                f"messages are {self.shares['transfer']:.0%} of the critical path: a free link "
                "would give"
            )
        if change == EARLY:
            return "recomputation waits for gradients: recomputing early would give"
        assert change == ORDER, change
        return "another order of the same actions, 1F1B, would give"

    def _no_advice(self, threshold: float, change: str) -> str:
        idle = self.timeline.bubble_over_total
        sentence = (
            f"no {change} that costs no memory would give more than {threshold:.2f}x: stages idle "
            f"{idle:.0%} of K x step"
        )
        if self.timeline.ranks > 1 and self.factor(DOUBLED) is None:
            sentence += f", and at this N there is no M of {2 * self.schedule.micro_batches}"
        return sentence


@dataclass(frozen=True)
class Costs:
    """What the actions of one step took.

    Attributes:
        seconds: (kind, stage) -> mean of the actions of a kind.
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
        """Those of a recorded step.

        R of a stage that recomputed nothing is taken to be its F. A stage without gaps, and a link
        for whose messages nobody waited, takes the median over the others.

        Raises:
            ValueError: when the spans are not the schedule's, or take no time.
        """
        _check(timeline, schedule)
        work = [s for s in timeline.spans if s.kind in COMPUTE]
        lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span in work:
            lengths[span.kind, span.stage].append(span.seconds)
        seconds = {key: fmean(values) for key, values in lengths.items()}
        for j in range(timeline.stages):
            seconds.setdefault(("R", j), seconds["F", j])

        gaps: dict[int, list[float]] = {j: [] for j in range(timeline.stages)}
        latencies: dict[tuple[int, int], list[float]] = {
            (action.rank, action.peer): []
            for actions in schedule.ranks
            for action in actions
            if action.kind == "Send"
        }
        for span, cause in find_causes(timeline, schedule).items():
            if span.kind not in COMPUTE or cause.span is None or cause.span.kind not in COMPUTE:
                continue
            waited = max(0.0, span.start - cause.span.end)
            if cause.wait == "gap":
                gaps[cause.span.stage].append(waited)
            else:
                link = cause.span.stage % timeline.ranks, span.stage % timeline.ranks
                latencies[link].append(waited)
        inside = max(s.end for s in work) - min(s.start for s in work)
        return cls(seconds, _medians(gaps), _medians(latencies), timeline.step_time - inside)

    def step(
        self, schedule: Schedule, part: float = 1.0, *, even: bool = False, free: bool = False
    ) -> float:
        """Seconds of a step with these costs.

        Args:
            schedule: what is run.
            part: of its seconds that an action takes, as the micro-batch is smaller.
                Gaps and latencies stay.
            even: every stage takes the mean over stages.
            free: messages arrive at once.
        """
        mean = {
            kind: fmean(seconds for (k, _), seconds in self.seconds.items() if k == kind)
            for kind in {kind for kind, _ in self.seconds}
        }

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


def _medians(samples: dict[Key, list[float]]) -> dict[Key, float]:
    """The median of each; where there is no sample that over all, and 0 where there is none."""
    everywhere = [value for values in samples.values() for value in values]
    default = median(everywhere) if everywhere else 0.0
    return {key: median(values) if values else default for key, values in samples.items()}


def _check(timeline: Timeline, schedule: Schedule) -> None:
    """Raise a ValueError if the spans are not those of the schedule, or take no time."""
    recorded = Counter(
        (s.kind, s.stage, s.micro_batch) for s in timeline.spans if s.kind in COMPUTE
    )
    planned = Counter(
        (a.kind, a.stage, a.micro_batch)
        for rank in range(len(schedule.ranks))
        for a in schedule.work(rank)
    )
    if recorded != planned:
        kind, j, i = min((recorded - planned) + (planned - recorded))
        raise ValueError(
            f"the timeline has {recorded[kind, j, i]} spans of {kind}{i} on stage {j}, the "
            f"schedule '{schedule.name}' has {planned[kind, j, i]}: they are not of one run; "
            "measure it again with --force"
        )
    if timeline.step_time <= 0:
        raise ValueError(
            "the timeline's spans take 0 s: nothing to explain; measure it again with --force"
        )


def _changed_steps(costs: Costs, schedule: Schedule, examples: int | None) -> dict[str, float]:
    """Name -> seconds of a step, for every change that concerns this run."""
    stages, M, checkpoint = schedule.stages, schedule.micro_batches, schedule.checkpoint
    kind = SCHEDULES[schedule.name]

    def like(micro_batches: int, checkpoint: str) -> Schedule:
        """The same kind of schedule with another M or checkpoint mode."""
        held = schedule.stages_per_rank
        return make_schedule(schedule.name, stages, micro_batches, checkpoint, held)

    steps: dict[str, float] = {}
    if len(schedule.ranks) > 1:
        # Equal stages are not always the best. Where R hides in waiting on all stages but the last,
        # above all with M=1, the last stage should have less than its part. So the cut as it is
        # counts as a balance too.
        steps[BALANCE] = min(costs.step(schedule, even=True), costs.step(schedule))
        for name, times in MORE.items():
            if examples is None or M * times <= examples:
                steps[name] = costs.step(like(M * times, checkpoint), 1 / times)
        steps[LINK] = costs.step(schedule, free=True)
        if kind.late and checkpoint != "never":
            steps[EARLY] = costs.step(_recomputed_early(schedule))
        if schedule.name != "1f1b" and kind.executed and not kind.interleaved:
            steps[ORDER] = costs.step(make_schedule("1f1b", stages, M, checkpoint))
    if checkpoint != "never":
        steps[NEVER] = costs.step(like(M, "never"))
    if checkpoint == "always":
        steps[EXCEPT_LAST] = costs.step(like(M, "except_last"))
    return steps


def _recomputed_early(schedule: Schedule) -> Schedule:
    """The same order of work, in which no R waits for a gradient."""
    orders = [
        [(a.kind, a.stage, a.micro_batch) for a in schedule.work(rank)]
        for rank in range(len(schedule.ranks))
    ]
    return schedule_from_orders(schedule.name, schedule.micro_batches, schedule.checkpoint, orders)
