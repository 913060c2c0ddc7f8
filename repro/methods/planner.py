"""PipeDream's planner (arXiv:1806.03377, section 3.1): stages, and how many replicas each has.

Gradients of replicas are summed in a ring, as everywhere here.
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from repro.methods.traffic import ring_share


class Plan(NamedTuple):
    """Stages, and what the slowest takes."""

    slowest_s: float  # seconds between two micro-batches
    stages: tuple[tuple[int, int], ...]  # layers and replicas of each


def plan(
    seconds: Sequence[float],
    boundary_s: Sequence[float],
    gradients_s: Sequence[float],
    devices: int,
) -> Plan:
    """The stages whose slowest is fastest, on so many devices.

    Args:
        seconds: of F and B of a micro-batch in each layer.
        boundary_s: to send what a layer gives, and its gradient back.
        gradients_s: to send the gradients of a layer's weights once.
    """

    def stage(first: int, end: int, r: int) -> float:
        """With r replicas, which sum gradients while they compute."""
        synchronised = ring_share("all-reduce", r) * sum(gradients_s[first:end])
        return max(sum(seconds[first:end]) / r, synchronised if r > 1 else 0.0)

    @cache
    def best(end: int, m: int) -> Plan:
        """For the first layers on m devices."""
        found = Plan(stage(0, end, m), ((end, m),))
        for r in range(1, m):
            for first in range(1, end):
                before = best(first, m - r)
                last = max(boundary_s[first - 1], stage(first, end, r))
                if max(before.slowest_s, last) < found.slowest_s:
                    stages = (*before.stages, (end - first, r))
                    found = Plan(max(before.slowest_s, last), stages)
        return found

    return best(len(seconds), devices)
