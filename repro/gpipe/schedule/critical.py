"""The critical path of a step: what the end of the step waited for, back to its start.

Pure: no torch, no clock. The path names what to make faster. A span that is not on it may become a
little slower without changing the step time.
"""

from collections.abc import Iterable
from itertools import pairwise

from repro.gpipe.schedule.actions import COMPUTE, Schedule
from repro.gpipe.schedule.timeline import KINDS, Span, Timeline

_PATH_KINDS: tuple[str, ...] = (*KINDS, "transfer", "gap")


def find_causes(timeline: Timeline, schedule: Schedule) -> dict[Span, tuple[Span | None, str]]:
    """The span for whose end each span of a step waited, and what the time between the two is.

    It is None for the first span of a rank that needs no message.

    - A span that needs a message waited for it if the sender ended after the previous span on its
      own rank. The time between is "transfer", which includes queueing and waking up.
    - U follows the last work of all stages, if it began after that: all stages agree that the step
      is finite before any of them updates.
    - Every other span followed the previous one on its rank. The time between is a "gap", even if a
      message that was sent earlier is still on its way.
    """
    producers = {  # what needs a message -> what makes it, as (kind, stage, micro-batch)
        (action.kind, action.stage, action.micro_batch): recv.producer
        for actions in schedule.ranks
        for recv, action in pairwise(actions)
        if recv.kind == "Recv"
    }
    span_of = {(s.kind, s.stage, s.micro_batch): s for s in timeline.spans}
    work = [s for s in timeline.spans if s.kind in COMPUTE]
    last_work = max(work, key=lambda s: s.end, default=None)
    causes: dict[Span, tuple[Span | None, str]] = {}
    for rank in range(timeline.ranks):
        previous: Span | None = None
        for span in timeline.on(rank):
            causes[span] = previous, "gap"
            producer = producers.get((span.kind, span.stage, span.micro_batch))
            sender = span_of.get(producer) if producer else None
            if sender is not None and (previous is None or sender.end > previous.end):
                causes[span] = sender, "transfer"
            elif (
                span.kind == "U"
                and previous
                and last_work
                and previous.end < last_work.end <= span.start
            ):
                causes[span] = last_work, "gap"
            previous = span
    return causes


def critical_path(timeline: Timeline, schedule: Schedule) -> tuple[Span, ...]:
    """The spans from the start of the step to its end; each begins where the one before ends.

    Between those of the timeline, one of kind "transfer" is the wait for a message, and a "gap" is
    any other time, which is the runtime's. Of these two, stage and micro-batch are those of the
    span that begins after them.

    The path starts at the span that ends last and follows `find_causes` backwards. Of several such
    spans it takes the one that began last, then that of the lowest stage. The time before the first
    span of the path is a gap.

    On clocks of different hosts a span can overlap with its cause. Such a cause counts only up to
    where the span begins, and is left out where nothing of it remains.
    """
    causes = find_causes(timeline, schedule)
    path: list[Span] = []
    end = timeline.start + timeline.step_time

    def reach_back(kind: str, span: Span, start: float) -> None:
        nonlocal end
        if start < end:
            path.append(Span(kind, span.stage, span.micro_batch, start, end))
            end = start

    visited: set[Span] = set()  # spans of clocks that are far apart could lead in a circle
    first = span = max(timeline.spans, key=lambda s: (s.end, s.start, -s.stage), default=None)
    while span is not None and span not in visited:
        visited.add(span)
        reach_back(span.kind, span, span.start)
        cause, wait = causes[span]
        if cause is not None:
            reach_back(wait, span, cause.end)
        first, span = span, cause
    if first is not None:
        reach_back("gap", first, timeline.start)
    return tuple(reversed(path))


def by_stage(path: Iterable[Span], stages: int) -> list[dict[str, float]]:
    """Of each stage, the seconds of each kind."""
    seconds = [dict.fromkeys(_PATH_KINDS, 0.0) for _ in range(stages)]
    for span in path:
        seconds[span.stage][span.kind] += span.seconds
    return seconds
