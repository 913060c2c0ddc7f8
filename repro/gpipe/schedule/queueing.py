"""What the messages of a link take, read off when they were sent and when their receivers began.

Pure: no torch, no clock. A link carries one message at a time (`replay.Crossing`); a message that
takes long may have occupied it all that time, so that the next one queues, or may have been one of
many on their way. The receivers tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import fmean, median, quantiles

from repro.gpipe.schedule.replay import Crossing

_TOLD = 1e-9  # of the time that the messages cover; errors that differ by less are the same
_LONGER = 1.1  # times the shortest wait, the longest for which a message may occupy the link
# an occupied link is believed if the error with it is at most this part of that without
_BETTER = 0.9


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a link; all in seconds on the timeline's clock.

    Attributes:
        sent: the end of the action that it comes from.
        free: when the receiver could have begun, had the message been there.
        began: when the receiver did begin.
        waited: whether the receiver demonstrably waited, so that the message arrived when it began.
    """

    sent: float
    free: float
    began: float
    waited: bool


def arrivals(messages: Sequence[Message], crossing: Crossing) -> list[float]:
    """When messages of one link, in the order they were sent, arrive: seconds on the timeline's clock.

    Each is predicted from the message before it: when that is seen to have arrived, by a receiver
    that stood idle, and else when that was predicted to.
    """
    found: list[float] = []
    busy = -inf  # until then, the link
    for message in messages:
        gone = (max(message.sent, busy) if crossing.seconds else message.sent) + crossing.seconds
        found.append(gone + crossing.latency)
        idle = message.began > message.free
        busy = max(message.sent, message.began - crossing.latency) if idle else gone
    return found


def fitted(messages: Sequence[Message]) -> Crossing | None:
    """What messages of one link, in the order they were sent, take: of all candidates that which predicts best.

    Candidates occupy the link for nothing, for the shortest wait, or for as long as lies between
    two receivers that stood idle (shortest, quartiles), but no longer than the shortest wait (and a
    tenth: it may be short by chance); the rest of the median wait that is no queueing is latency. A
    link is taken to be occupied only if that tells clearly better when the receivers began.

    Returns:
        seconds and latency; None where no receiver demonstrably waited.
    """
    waits = [max(0.0, m.began - m.sent) for m in messages if m.waited]
    if not waits:
        return None
    unqueued = _crossing(messages, 0.0)
    apart = [
        b.began - a.began for a, b in pairwise(messages) if a.began > a.free and b.began > b.free
    ]
    between = [min(apart), *quantiles(apart, n=4)] if len(apart) > 1 else apart
    seconds = {
        min(waits),
        *(min(value, _LONGER * min(waits)) for value in between if value > 0),
    } - {0.0}
    if not seconds:
        return unqueued
    error, best = min((_error(messages, c), c) for c in (_crossing(messages, s) for s in seconds))
    without = _error(messages, unqueued)
    told = _TOLD * (max(m.began for m in messages) - min(m.sent for m in messages))
    return best if error < _BETTER * without and error < without - told else unqueued


def _gone(messages: Sequence[Message], seconds: float) -> list[float]:
    """When each message no longer occupies the link."""
    found: list[float] = []
    for message in messages:
        found.append(
            (max(message.sent, found[-1]) if found and seconds else message.sent) + seconds
        )
    return found


def _crossing(messages: Sequence[Message], seconds: float) -> Crossing:
    """With the latency that this many occupied seconds leave, median over receivers that waited."""
    gone = _gone(messages, seconds)
    return Crossing(
        seconds,
        median(max(0.0, m.began - g) for m, g in zip(messages, gone, strict=True) if m.waited),
    )


def _error(messages: Sequence[Message], crossing: Crossing) -> float:
    """Mean seconds by which the receivers began sooner or later than predicted."""
    there = arrivals(messages, crossing)
    return fmean(abs(m.began - max(m.free, at)) for m, at in zip(messages, there, strict=True))
