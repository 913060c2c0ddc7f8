"""One training step on a virtual clock, by the walker of `repro.gpipe.schedule.replay`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.replay import Crossing, replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.simulate.calibration import Together
from repro.simulate.stage_costs import FREE, StageCosts


def simulate(schedule: Schedule, costs: StageCosts) -> Timeline:
    """One step: set-up, the schedule's actions as early as order and messages allow, and the update.

    Where costs are uniform, and messages, set-up and update free, its step is that of
    `repro.paper.theory` to rounding.

    Raises:
        ValueError: if the schedule has another number of stages than the costs.
    """
    if schedule.stages != costs.stages:
        raise ValueError(
            f"schedule: has K={schedule.stages} stages, costs those of {costs.stages}; give both "
            "the same K"
        )
    seconds = {"F": costs.forward, "R": costs.recompute, "B": costs.backward}
    K = len(schedule.ranks)
    ready = [0.0] * K
    before: list[Span] = []
    for stage, took in enumerate(costs.setup):
        start = ready[stage % K]
        ready[stage % K] += took
        if took:
            before.append(Span("setup", stage, -1, start, start + took))
    update = [sum(costs.update[rank::K]) for rank in range(K)]
    timeline = replay(
        schedule, lambda action: seconds[action.kind][action.stage], _transfer(costs), ready, update
    )
    return replace(timeline, spans=(*before, *timeline.spans))


def settle(
    schedule: Schedule, costs: Callable[[Together], StageCosts], rounds: int = 3
) -> StageCosts:
    """Costs that depend on how much the stages compute at once, which depends on the costs.

    Args:
        schedule: whose stages.
        costs: what they are, given the part of the other stages that is busy meanwhile
            (`together`).
        rounds: begun with all stages always busy, the step is simulated and looked at so many
            times.
    """
    found = costs(dict.fromkeys("FRB", (1.0,) * schedule.stages))
    for _ in range(rounds):
        found = costs(together(simulate(schedule, found)))
    return found


def together(timeline: Timeline) -> dict[str, tuple[float, ...]]:
    """While each stage is in F, in R, in B: the part of the other stages that is in one of these as well, in [0, 1].

    It is a mean over the time; 0 where there is no other stage, or none of that time.
    """
    work = [span for span in timeline.spans if span.kind in "FRB"]
    edges = sorted(
        (moment, change) for span in work for moment, change in ((span.start, 1), (span.end, -1))
    )
    computed: dict[float, float] = {}  # moment -> seconds of all stages together until then
    before = total = 0.0
    busy = 0
    for moment, change in edges:
        total += busy * (moment - before)
        computed[moment] = total
        before, busy = moment, busy + change
    K = timeline.stages
    own = {kind: [0.0] * K for kind in "FRB"}
    others = {kind: [0.0] * K for kind in "FRB"}
    for span in work:
        own[span.kind][span.stage] += span.seconds
        others[span.kind][span.stage] += computed[span.end] - computed[span.start] - span.seconds
    return {
        kind: tuple(
            min(1.0, max(0.0, part / (K - 1) / mine)) if mine and K > 1 else 0.0
            for part, mine in zip(others[kind], own[kind], strict=True)
        )
        for kind in "FRB"
    }


def _transfer(costs: StageCosts) -> "float | Any":
    """What the messages take; without bounds on the link nothing has to be looked up."""
    link = costs.link
    if link == FREE:
        return 0.0
    sizes = {("F", j): size for j, size in enumerate(costs.activations)}
    sizes |= {("B", j + 1): size for j, size in enumerate(costs.gradients)}
    found = {
        key: Crossing(size / link.bytes_per_second, link.latency, not link.overlap)
        if size
        else Crossing()
        for key, size in sizes.items()
    }

    def crossing(send: Action) -> Crossing:
        return found[send.of, send.stage]

    return crossing
