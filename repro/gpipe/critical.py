"""The critical path of a step: what the end of the step waited for, back to its start.

Pure: no torch, no clock; spans and the schedule that was run go in. The path names what to make faster: a span that is
not on it may become a little slower without the step noticing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from repro.gpipe.schedule import Action, Schedule
from repro.gpipe.timeline import KINDS, Span, Timeline

PATH_KINDS: tuple[str, ...] = (*KINDS, "transfer", "gap")


@dataclass(frozen=True, slots=True)
class Leg:
    """One item of a critical path.

    Attributes:
        kind: that of the span, "transfer" for the wait for a message, or "gap" for what is neither: the runtime.
        stage: j; of a transfer and a gap, the stage whose next span could not begin.
        micro_batch: i, or -1.
        start: seconds on the timeline's clock.
        end: seconds on the same clock; that of one leg is the start of the next.
    """

    kind: str
    stage: int
    micro_batch: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Length in seconds, above 0."""
        return self.end - self.start


def critical_path(timeline: Timeline, schedule: Schedule) -> tuple[Leg, ...]:
    """The legs from the start of the step to its end, in order; each begins where the one before ends.

    From the span that ends last (of several the one that also began last, then that of the lowest stage) backwards:

    - A span that needs a message waited for it if the sender ended after the previous span on its own stage; what lies
      between, sending and waking included, is "transfer". It also did if by the usual delay (`delays`) the message was
      still on its way when the previous span ended, and the stage then stood still for longer than it usually does
      without a reason (`gaps`).
    - Otherwise, ties included, it followed the previous span on its stage; what lies between is "gap", however short.
    - U follows the last work of any stage, if it began after that: stages agree that a step is finite before any of
      them updates, and nobody sees that wait in the schedule.
    - Before the first span of a stage there is a gap. Spans that overlap, as clocks of different hosts may have it,
      count up to where the leg after them begins; what that leaves nothing of is left out.

    Args:
        timeline: of one training step.
        schedule: what was run.
    """
    causes = _Causes(timeline, schedule)
    legs: list[Leg] = []
    cursor = timeline.start + timeline.step_time

    def take(kind: str, span: Span, start: float) -> None:
        nonlocal cursor
        if start < cursor:
            legs.append(Leg(kind, span.stage, span.micro_batch, start, cursor))
            cursor = start

    span = max(timeline.spans, key=lambda s: (s.end, s.start, -s.stage), default=None)
    seen: set[Span] = set()
    while span is not None and span not in seen:  # clocks that are far apart could lead in a circle
        seen.add(span)
        take(span.kind, span, span.start)
        cause, wait = causes.of(span)
        if cause is not None:
            take(wait, span, cause.end)
        last, span = span, cause
    if legs:
        take("gap", last, timeline.start)
    return tuple(reversed(legs))


def by_kind(legs: Iterable[Leg]) -> dict[str, float]:
    """Seconds of each of `PATH_KINDS`, those without any included."""
    found = dict.fromkeys(PATH_KINDS, 0.0)
    for leg in legs:
        found[leg.kind] += leg.seconds
    return found


def by_stage(legs: Iterable[Leg], stages: int) -> list[dict[str, float]]:
    """`by_kind` of each of K stages."""
    legs = tuple(legs)
    return [by_kind(leg for leg in legs if leg.stage == j) for j in range(stages)]


def delays(timeline: Timeline, schedule: Schedule) -> dict[tuple[int, int], float]:
    """Seconds that a message takes from the end of its action, (sending stage, receiving stage) -> median.

    Read off the spans that demonstrably waited: whose stage was free when the sender ended. A link on which none did
    has the median of all others, 0 where there is none.
    """
    return _Causes(timeline, schedule).delays


def gaps(timeline: Timeline, schedule: Schedule) -> dict[tuple[str, int], float]:
    """Seconds between a span of this kind on this stage and the next one that waited for no message: medians.

    They hold the sending of what the span made and the bookkeeping; a kind that no such span follows is not listed.
    """
    return _Causes(timeline, schedule).gaps


class _Causes:
    """What each span waited for."""

    def __init__(self, timeline: Timeline, schedule: Schedule) -> None:
        self._schedule = schedule
        ordered = [timeline.on(j) for j in range(timeline.stages)]
        self._previous = {s: p for spans in ordered for p, s in pairwise(spans)}
        self._done = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
        self._work_ended = max((s for s in timeline.spans if s.kind in "FRB"), key=lambda s: s.end, default=None)
        self.delays = self._delays(timeline)
        self.gaps = self._gaps(timeline)

    def of(self, span: Span) -> tuple[Span | None, str]:
        """The span that this one waited for, if any, and what the time between them is."""
        previous, sender = self._previous.get(span), self._sender(span)
        last = self._work_ended
        if span.kind == "U" and last is not None and previous is not None and previous.end < last.end <= span.start:
            return last, "gap"
        if sender is None or (previous is not None and not self._waited(span, previous, sender)):
            return previous, "gap"
        return sender, "transfer"

    def _sender(self, span: Span) -> Span | None:
        """The span whose message this one needs."""
        if span.kind not in "FRB":
            return None
        need = self._schedule.needs(Action(span.kind, span.stage, span.micro_batch))
        return self._done.get((need.kind, need.stage, need.micro_batch)) if need else None

    def _waited(self, span: Span, previous: Span, sender: Span) -> bool:
        """Whether a span waited for its message rather than for its stage."""
        if sender.end > previous.end:
            return True
        under_way = sender.end + self.delays[sender.stage, span.stage] > previous.end
        return under_way and span.start - previous.end > self.gaps.get((previous.kind, span.stage), 0.0)

    def _delays(self, timeline: Timeline) -> dict[tuple[int, int], float]:
        found: dict[tuple[int, int], list[float]] = defaultdict(list)
        for span in timeline.spans:
            previous, sender = self._previous.get(span), self._sender(span)
            if sender is not None and (previous is None or sender.end > previous.end):
                found[sender.stage, span.stage].append(max(0.0, span.start - sender.end))
        everywhere = median(value for values in found.values() for value in values) if found else 0.0
        links = [(j, k) for j in range(timeline.stages) for k in (j - 1, j + 1) if 0 <= k < timeline.stages]
        return {link: median(found[link]) if found[link] else everywhere for link in links}

    def _gaps(self, timeline: Timeline) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span, previous in self._previous.items():
            sender = self._sender(span)
            there = sender is None or sender.end + self.delays[sender.stage, span.stage] <= previous.end
            if span.kind in "FRB" and previous.kind in "FRB" and there:
                found[previous.kind, span.stage].append(max(0.0, span.start - previous.end))
        return {key: median(values) for key, values in found.items()}
