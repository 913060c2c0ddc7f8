"""The critical path of a step: what the end of the step waited for, back to its start.

Pure: no torch, no clock; spans and the schedule that was run go in. The path names what to make
faster: a span that is not on it may become a little slower without the step noticing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import median

from repro.gpipe.schedule.actions import COMPUTE, Schedule
from repro.gpipe.schedule.queueing import Message, arrivals, fitted
from repro.gpipe.schedule.replay import Crossing
from repro.gpipe.schedule.timeline import KINDS, Span, Timeline

PATH_KINDS: tuple[str, ...] = (*KINDS, "transfer", "gap")


@dataclass(frozen=True, slots=True)
class Leg:
    """One item of a critical path.

    Attributes:
        kind: that of the span, "transfer" for the wait for a message, or "gap" for what is neither:
            the runtime.
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

    From the span that ends last (of several the one that also began last, then that of the lowest
    stage) backwards:

    - A span that needs a message waited for it if the sender ended after the previous span on its
      own stage; what lies between, queueing, sending and waking included, is "transfer". It also
      did if by what the messages of its link take (`delays`) its own was still on its way when the
      previous span ended, and the stage then stood still for longer than it usually does without a
      reason (`gaps`).
    - Otherwise, ties included, it followed the previous span on its stage; what lies between is
      "gap", however short.
    - U follows the last work of any stage, if it began after that: stages agree that a step is
      finite before any of them updates, and nobody sees that wait in the schedule.
    - Before the first span of a stage there is a gap. Spans that overlap, as clocks of different
      hosts may have it, count up to where the leg after them begins; what that leaves nothing of is
      left out.

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


def delays(timeline: Timeline, schedule: Schedule) -> dict[tuple[int, int], Crossing]:
    """What a message takes from the end of its action, (sending rank, receiving rank) -> seconds.

    Read off the spans that demonstrably waited: whose rank was free when the sender ended. Their
    median is latency, unless the link carried one message at a time for so long that others queued,
    see `queueing.fitted`. A link on which none did wait has the median of all others as its
    latency, 0 where there is none.
    """
    return _Causes(timeline, schedule).delays


def gaps(timeline: Timeline, schedule: Schedule) -> dict[tuple[str, int], float]:
    """Seconds between a span of this kind on this stage and the next one that waited for no message: medians.

    They hold the sending of what the span made and the bookkeeping; a kind that no such span
    follows is not listed.
    """
    return _Causes(timeline, schedule).gaps


class _Causes:
    """What each span waited for."""

    def __init__(self, timeline: Timeline, schedule: Schedule) -> None:
        self._ranks = timeline.ranks
        self._makers = _makers(schedule)
        ordered = [timeline.on(rank) for rank in range(timeline.ranks)]
        self._previous = {s: p for spans in ordered for p, s in pairwise(spans)}
        self._done = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
        self._work_ended = max(
            (s for s in timeline.spans if s.kind in COMPUTE), key=lambda s: s.end, default=None
        )
        self._links = self._received(timeline)
        self._arrivals: dict[Span, float] = {}  # of the message of a sender
        # only where no message was needed: what messages take is not known yet
        self.gaps = self._gaps()
        links = {
            (a.rank, a.peer) for actions in schedule.ranks for a in actions if a.kind == "Send"
        }
        self.delays = self._delays(links)
        self.gaps = self._gaps()

    def of(self, span: Span) -> tuple[Span | None, str]:
        """The span that this one waited for, if any, and what the time between them is."""
        previous, sender = self._previous.get(span), self._sender(span)
        last = self._work_ended
        if (
            span.kind == "U"
            and last is not None
            and previous is not None
            and previous.end < last.end <= span.start
        ):
            return last, "gap"
        if sender is None or (previous is not None and not self._waited(span, previous, sender)):
            return previous, "gap"
        return sender, "transfer"

    def _sender(self, span: Span) -> Span | None:
        """The span whose message this one needs."""
        maker = self._makers.get((span.kind, span.stage, span.micro_batch))
        return self._done.get(maker) if maker else None

    def _waited(self, span: Span, previous: Span, sender: Span) -> bool:
        """Whether a span waited for its message rather than for its stage."""
        if sender.end > previous.end:
            return True
        under_way = self._arrivals[sender] > previous.end
        return under_way and span.start - previous.end > self.gaps.get(
            (previous.kind, span.stage), 0.0
        )

    def _received(self, timeline: Timeline) -> dict[tuple[int, int], list[tuple[Span, Span]]]:
        """(sending rank, receiving rank) -> (sender, receiver) of its messages, in the order they were sent."""
        pairs = [
            (sender, span) for span in timeline.spans if (sender := self._sender(span)) is not None
        ]
        found: dict[tuple[int, int], list[tuple[Span, Span]]] = defaultdict(list)
        for sender, span in sorted(pairs, key=lambda pair: pair[0].end):
            found[sender.stage % self._ranks, span.stage % self._ranks].append((sender, span))
        return found

    def _message(self, sender: Span, span: Span) -> Message:
        """What is known of the message that a span needs."""
        previous = self._previous.get(span)
        if previous is None:
            return Message(sender.end, sender.end, span.start, waited=True)
        usual = self.gaps.get((previous.kind, span.stage), 0.0)
        return Message(
            sender.end, previous.end + usual, span.start, waited=sender.end > previous.end
        )

    def _delays(self, links: set[tuple[int, int]]) -> dict[tuple[int, int], Crossing]:
        """What messages take on every link; `_arrivals` of every sender's follow from it."""
        sent = {
            link: [self._message(*pair) for pair in pairs] for link, pairs in self._links.items()
        }
        waits = [
            max(0.0, m.began - m.sent) for messages in sent.values() for m in messages if m.waited
        ]
        everywhere = Crossing(latency=median(waits) if waits else 0.0)
        found = {link: fitted(sent.get(link, ())) or everywhere for link in links}
        for link, pairs in self._links.items():
            there = arrivals(sent[link], found[link])
            self._arrivals.update(
                (sender, at) for (sender, _), at in zip(pairs, there, strict=True)
            )
        return found

    def _gaps(self) -> dict[tuple[str, int], float]:
        """Medians over spans that needed no message, or whose message is known to have been there."""
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for span, previous in self._previous.items():
            sender = self._sender(span)
            there = sender is None or self._arrivals.get(sender, inf) <= previous.end
            if span.kind in COMPUTE and previous.kind in COMPUTE and there:
                found[previous.kind, span.stage].append(max(0.0, span.start - previous.end))
        return {key: median(values) for key, values in found.items()}


def _makers(schedule: Schedule) -> dict[tuple[str, int, int], tuple[str, int, int]]:
    """(kind, stage, micro-batch) of an action that directly follows a Recv -> that of the action on another rank."""
    return {
        (action.kind, action.stage, action.micro_batch): recv.producer[:3]
        for actions in schedule.ranks
        for recv, action in pairwise(actions)
        if recv.kind == "Recv"
    }
