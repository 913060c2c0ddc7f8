"""Why a step takes as long as it does: where its critical path goes, and what changes to the run would give.

Pure: no torch, no clock. A change is never run, it is replayed with the costs that were recorded;
so all of it stands and falls with how well the unchanged schedule, replayed in the same way, gives
the step that was recorded.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.critical import Leg, by_kind, critical_path, delays, gaps
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Timeline

BALANCE, LINK, EARLY, ORDER = "better balance", "free link", "recompute early", "1F1B order"
DOUBLED, QUADRUPLED = "M doubled", "M quadrupled"
NEVER, EXCEPT_LAST = "nothing recomputed", "recompute except last"
ALL, NEVER_IDLE = "all together", "never idle"
MORE = {DOUBLED: 2, QUADRUPLED: 4}
CHANGES = {  # what each assumes
    BALANCE: (
        "every stage takes the mean over stages, as whole layers hardly can; or as now, if that "
        "is faster"
    ),
    DOUBLED: "same N; half the seconds per micro-batch, which fixed costs of a micro-batch break",
    QUADRUPLED: (
        "same N; a quarter of the seconds per micro-batch, which fixed costs of a micro-batch break"
    ),
    EARLY: "R no longer waits for the gradient",
    NEVER: "keeps all activations: costs memory",
    EXCEPT_LAST: "no R where B directly follows F: keeps one more micro-batch's activations",
    LINK: "messages arrive at once; what sending costs the stage stays",
    ORDER: "fewer activations are kept at once",
    ALL: "of better balance, the better M, nothing recomputed and free link those that gain",
    NEVER_IDLE: "a bound: the same work, R included, spread evenly over K stages that never wait",
}
_COSTS_MEMORY = (NEVER, EXCEPT_LAST)
_TOLD = 1.02  # a factor below, or within the error of the replay, is not worth a sentence


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that could be otherwise: its name in `CHANGES`, the step in seconds, the unchanged step over that."""

    name: str
    step_s: float
    factor: float


def what_if(timeline: Timeline, schedule: Schedule, examples: int | None = None) -> list[Change]:
    """Every change that this run allows, each replayed alone, then `ALL` and `NEVER_IDLE`; the greatest gain first.

    Factors are over `Costs.step` of the unchanged schedule, not over the recorded step.

    Args:
        timeline: of one training step.
        schedule: what was run.
        examples: N of one replica; more micro-batches than that are not tried. None is no limit.

    Raises:
        ValueError: one line, when the spans are not the schedule's, or take no time.
    """
    return _changes(Costs.of(timeline, schedule), schedule, examples)


@dataclass(frozen=True)
class Why:
    """A step explained.

    Attributes:
        timeline: of the step.
        schedule: what was run.
        path: its critical path.
        base_s: the unchanged schedule replayed, in seconds.
        changes: `what_if`.
    """

    timeline: Timeline
    schedule: Schedule
    path: tuple[Leg, ...]
    base_s: float
    changes: tuple[Change, ...]

    @classmethod
    def of(cls, timeline: Timeline, schedule: Schedule, examples: int | None = None) -> "Why":
        """Arguments and errors as in `what_if`."""
        costs = Costs.of(timeline, schedule)
        found = tuple(_changes(costs, schedule, examples))
        return cls(
            timeline, schedule, critical_path(timeline, schedule), costs.step(schedule), found
        )

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
        """What a change would give; None where it does not concern this run."""
        return next((change.factor for change in self.changes if change.name == name), None)

    @property
    def verdict(self) -> str:
        """One sentence: the largest cause that costs no memory, and keeping all activations where that gives more."""
        return self.verdict_without(())

    def verdict_without(self, disproved: Collection[str]) -> str:
        """The same where some changes, by their names, were tried and gave nothing."""
        left_out = (*_COSTS_MEMORY, ALL, NEVER_IDLE, *disproved)
        alone = [c for c in self.changes if c.name not in left_out]
        best = max(alone, key=lambda change: change.factor, default=None)
        gain, told_from = (best.factor if best else 1.0), max(_TOLD, 1 + abs(self.error))
        if self.shares["gap"] > max(1 - 1 / gain, 1 - 1 / told_from):
            told = (
                f"the runtime: {self.shares['gap']:.0%} of the critical path is neither work nor a "
                "message"
            )
        elif best and gain >= told_from:
            told = f"{self._cause(best.name)} {gain:.2f}x"
        else:
            idle = self.timeline.bubble_over_total
            other = "other " if disproved else ""
            told = f"no {other}change that costs no memory would give more than {told_from:.2f}x"
            told += f": stages idle {idle:.0%} of K x step"
            if self.timeline.stages > 1 and self.factor(DOUBLED) is None:
                told += f", and at this N there is no M of {2 * self.schedule.micro_batches}"
        never = 1.0 if NEVER in disproved else self.factor(NEVER) or 1.0
        if never >= max(gain, told_from):
            told += f"; keeping all activations instead of recomputing them would give {never:.2f}x"
        return told

    def _cause(self, change: str) -> str:
        """What is wrong, and what to do about it, as far as its gain."""
        K, M = self.timeline.stages, self.schedule.micro_batches
        if change in MORE:
            idle, more = self.timeline.bubble_over_total, M * MORE[change]
            return (
                f"stages idle {idle:.0%} of K x step: M={more} instead of {M} at the same N would "
                "give about"
            )
        if change == BALANCE:
            work = [self.timeline.busy(j, "FRB") for j in range(K)]
            slowest = max(range(K), key=work.__getitem__)
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


@dataclass(frozen=True)
class Costs:
    """What one step's actions took.

    Attributes:
        seconds: (kind, stage) -> mean of F, R or B.
        gaps: (kind, stage) -> how long the stage is taken by what follows such an action, see
            `critical.gaps`.
        delays: (sending rank, receiving rank) -> seconds for which a message occupies the link, and
            of latency, from the end of its action on, see `critical.delays`.
        around: seconds of the step before the first F and after the last B: set-up, agreement and
            update.
    """

    seconds: dict[tuple[str, int], float]
    gaps: dict[tuple[str, int], float]
    delays: dict[tuple[int, int], Crossing]
    around: float

    @classmethod
    def of(cls, timeline: Timeline, schedule: Schedule) -> "Costs":
        """Those of a recorded step; R of a stage that recomputed nothing is taken to be its F.

        Raises ValueError, one line, when the spans are not the schedule's, or take no time.
        """
        _check(timeline, schedule)
        lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
        work = [s for s in timeline.spans if s.kind in COMPUTE]
        for span in work:
            lengths[span.kind, span.stage].append(span.seconds)
        seconds = {key: fmean(values) for key, values in lengths.items()}
        for j in range(timeline.stages):
            seconds.setdefault(("R", j), seconds["F", j])
        inside = max(s.end for s in work) - min(s.start for s in work)
        return cls(
            seconds,
            _everywhere(gaps(timeline, schedule), timeline.stages),
            delays(timeline, schedule),
            timeline.step_time - inside,
        )

    def step(
        self, schedule: Schedule, part: float = 1.0, *, even: bool = False, free: bool = False
    ) -> float:
        """Seconds of a step with these costs.

        Args:
            schedule: what is run.
            part: of the seconds of an action, and of those for which its message occupies a link;
                what is around it, and the latency of a message, takes as long as ever.
            even: every stage takes the mean over stages.
            free: messages arrive at once and occupy no link.
        """
        mean = {
            kind: fmean(v for (k, _), v in self.seconds.items() if k == kind) for kind in COMPUTE
        }

        def duration(action: Action) -> float:
            own = mean[action.kind] if even else self.seconds[action.kind, action.stage]
            return part * own + self.gaps[action.kind, action.stage]

        # from the end of the action, a gap is no part of it
        def crossing(send: Action) -> Crossing:
            sending = self.gaps[send.of, send.stage]
            message = Crossing() if free else self.delays[send.rank, send.peer]
            return Crossing(part * message.seconds, message.latency - sending)

        walked = replay(schedule, duration, crossing)
        return self.around + max(s.end - self.gaps[s.kind, s.stage] for s in walked.spans)


def _check(timeline: Timeline, schedule: Schedule) -> None:
    recorded = Counter(
        (s.kind, s.stage, s.micro_batch) for s in timeline.spans if s.kind in COMPUTE
    )
    planned = Counter((a.kind, a.stage, a.micro_batch) for a in _work(schedule))
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


def _everywhere(found: dict[tuple[str, int], float], stages: int) -> dict[tuple[str, int], float]:
    """Gaps of every kind on every stage; where none was seen the median of the kind, and else none."""
    for kind in COMPUTE:
        known = [seconds for (k, _), seconds in found.items() if k == kind]
        for j in range(stages):
            found.setdefault((kind, j), median(known) if known else 0.0)
    return found


def _changes(costs: Costs, schedule: Schedule, examples: int | None) -> list[Change]:
    base = costs.step(schedule)
    found = dict(_alone(costs, schedule, examples))
    K, M = len(schedule.ranks), schedule.micro_batches
    if K > 1:
        # What does not gain alone is left out.
        _, times = min([(base, 1), *((found[name], MORE[name]) for name in MORE if name in found)])
        checkpoint = "never" if found.get(NEVER, base) < base else schedule.checkpoint
        free, even = found[LINK] < base, found[BALANCE] < base
        other = _like(schedule, M * times, checkpoint)
        found[ALL] = min(costs.step(other, 1 / times, even=e, free=free) for e in {even, False})
        work = sum(costs.seconds[a.kind, a.stage] for a in _work(schedule))
        found[NEVER_IDLE] = costs.around + work / K
    changes = [Change(name, step, base / step) for name, step in found.items()]
    return sorted(changes, key=lambda change: change.step_s)


def _alone(costs: Costs, schedule: Schedule, examples: int | None) -> Iterator[tuple[str, float]]:
    """(name, seconds) of every change that concerns this run."""
    K, M, checkpoint = schedule.stages, schedule.micro_batches, schedule.checkpoint
    if K > 1:
        # Equal stages are not always the best: where R hides in waiting on all stages but the last,
        # with M=1 above all, the last one is better off with less than its part. As it is now is a
        # cut as well.
        yield BALANCE, min(costs.step(schedule, even=even) for even in (True, False))
        for name, times in MORE.items():
            if examples is None or M * times <= examples:
                yield name, costs.step(_like(schedule, M * times, checkpoint), 1 / times)
        if checkpoint != "never" and schedule.name == "gpipe-late":
            yield EARLY, costs.step(make_schedule("gpipe", K, M, checkpoint))
        yield LINK, costs.step(schedule, free=True)
        if schedule.name != "1f1b" and schedule.stages_per_rank == 1:
            yield ORDER, costs.step(make_schedule("1f1b", K, M, checkpoint))
    if checkpoint != "never":
        yield NEVER, costs.step(_like(schedule, M, "never"))
    if checkpoint == "always":
        yield EXCEPT_LAST, costs.step(_like(schedule, M, "except_last"))


def _work(schedule: Schedule) -> Iterator[Action]:
    """F, R and B of all ranks."""
    for rank in range(len(schedule.ranks)):
        yield from schedule.work(rank)


def _like(schedule: Schedule, micro_batches: int, checkpoint: str) -> Schedule:
    """The same kind of schedule with another M or checkpoint mode."""
    return make_schedule(
        schedule.name, schedule.stages, micro_batches, checkpoint, schedule.stages_per_rank
    )
