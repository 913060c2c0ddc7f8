"""Replicas of a pipeline on the virtual clock: what the sums of their gradients add to a step."""

from collections.abc import Sequence

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline


def all_reduce_seconds(size: int, replicas: int, link: LinkSpeed) -> float:
    """Seconds of a ring all-reduce over D replicas.

    Each replica sends 2 (D-1) messages, and 2 (D-1) / D of the bytes. Nothing else uses the links
    meanwhile.

    Args:
        size: bytes of the gradients.
        replicas: D.
        link: from each replica to the next.
    """
    if replicas == 1:
        return 0.0
    messages = 2 * (replicas - 1)
    return messages * (link.latency + size / replicas / link.bytes_per_second)


def exposed_seconds(timeline: Timeline, all_reduce: Sequence[float]) -> float:
    """Seconds by which the all-reduces of the ranks end after the last backward of the step.

    The all-reduce of a rank starts when its last backward ends. In the runtime it starts within
    that backward, with the first bucket of final gradients, so this is an upper bound.

    Args:
        timeline: of one replica's step.
        all_reduce: seconds of the all-reduce of each rank.
    """
    ends = [
        max(span.end for span in timeline.on(rank) if span.kind in ("B", "W"))
        for rank in range(timeline.ranks)
    ]
    last = max(end + seconds for end, seconds in zip(ends, all_reduce, strict=True))
    return last - max(ends)
