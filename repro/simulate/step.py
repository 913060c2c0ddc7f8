"""Simulation of one training step on a virtual clock, by `repro.gpipe.schedule.replay`."""

from collections.abc import Callable, Sequence

from repro.gpipe.schedule.actions import COMPUTE, GRADIENT, Schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Timeline
from repro.simulate.stage_costs import StageCosts


def simulate(schedule: Schedule, costs: StageCosts) -> Timeline:
    """One step: set-up, the actions as early as order and messages allow, the update.

    With uniform costs and free messages, set-up and update, the step time is that of
    `repro.paper.theory`, to rounding.
    """
    assert schedule.stages == costs.stages
    seconds = {
        "F": costs.forward,
        "R": costs.recompute,
        "B": costs.backward,
        "I": costs.backward_input,
        "W": costs.backward_weight,
    }
    K = len(schedule.orders)
    update = [sum(costs.update[rank::K]) for rank in range(K)]
    return replay(
        schedule, lambda kind, stage: seconds[kind][stage], _crossing(costs), costs.setup, update
    )


def _crossing(costs: StageCosts) -> Callable[[str, int], Crossing]:
    """How long the messages take, as `replay` takes it."""
    link = costs.link
    sizes = {("F", j): size for j, size in enumerate(costs.activations)}
    sizes |= {(of, j + 1): size for of in GRADIENT for j, size in enumerate(costs.gradients)}
    crossings = {
        key: Crossing(size / link.bytes_per_second, link.latency, not link.overlap)
        for key, size in sizes.items()
        if size
    }
    return lambda kind, stage: crossings.get((kind, stage), Crossing())


def exposed_seconds(step: Timeline, all_reduce: Sequence[float]) -> float:
    """Seconds by which the all-reduces of the ranks end after the last backward of the step.

    The all-reduce of a rank starts when its last backward ends.
    """
    works = ([s for s in step.on(rank) if s.kind in COMPUTE] for rank in range(step.ranks))
    ends = [of_rank[-1].end for of_rank in works]
    last = max(end + seconds for end, seconds in zip(ends, all_reduce, strict=True))
    return last - max(ends)
