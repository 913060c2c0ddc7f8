"""Simulation of one training step on a virtual clock, by `repro.gpipe.schedule.replay`."""

from collections.abc import Callable, Sequence

from repro.gpipe.schedule.actions import COMPUTE, GRADIENT, Schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Timeline
from repro.simulate.calibration import Overlap
from repro.simulate.stage_costs import StageCosts

_TIMED = ("F", "R", "B")  # whose layers are timed
_ROUNDS = 3  # simulations until costs that depend on each other have settled


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


def settle(schedule: Schedule, costs: Callable[[Overlap], StageCosts]) -> StageCosts:
    """Stage costs that depend on how many stages compute at once: a fixed-point iteration.

    The first of the simulations assumes that all stages always compute.
    """
    settled = costs(dict.fromkeys(_TIMED, (1.0,) * schedule.stages))
    for _ in range(_ROUNDS):
        settled = costs(overlap(simulate(schedule, settled)))
    return settled


def overlap(timeline: Timeline) -> dict[str, tuple[float, ...]]:
    """Fraction of the other stages that compute while a stage is in F, R or B, in [0, 1].

    Each has a mean over time for each stage; 0 if K=1 or the stage has no such action. I and W
    count as B, since layers are timed with whole backwards.
    """
    work = [span for span in timeline.spans if span.kind in COMPUTE]
    changes = [(span.start, 1) for span in work] + [(span.end, -1) for span in work]
    work_until: dict[float, float] = {}  # moment -> seconds of work of all stages until then
    previous = total = 0.0
    busy = 0
    for moment, change in sorted(changes):
        total += busy * (moment - previous)
        work_until[moment] = total
        previous, busy = moment, busy + change
    K = timeline.stages
    seconds = {kind: [0.0] * K for kind in _TIMED}  # of each stage
    others = {kind: [0.0] * K for kind in _TIMED}  # of the other stages meanwhile
    for span in work:
        kind = "B" if span.kind in ("I", "W") else span.kind
        seconds[kind][span.stage] += span.seconds
        all_work = work_until[span.end] - work_until[span.start]
        others[kind][span.stage] += all_work - span.seconds

    def fraction(others: float, seconds: float) -> float:
        if K == 1 or not seconds:
            return 0.0
        return min(1.0, max(0.0, others / (K - 1) / seconds))

    return {kind: tuple(map(fraction, others[kind], seconds[kind])) for kind in _TIMED}


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
