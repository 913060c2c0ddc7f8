"""What the pipeline player should show of a case, by the project's own schedules and simulation."""

from typing import Any

from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.timeline import Timeline
from repro.simulate.stage_costs import StageCosts
from repro.simulate.step import simulate


def schedule_of(case: dict[str, Any]) -> Schedule:
    K, M, v = case["K"], case["M"], case["v"]
    return make_schedule(case["schedule"], K * v, M, case["checkpoint"], v)


def simulation_of(case: dict[str, Any]) -> Timeline:
    """A rank's layers take F, R and B, whether it holds them as one stage or as several."""
    v = case["v"]
    costs = StageCosts(*((case[kind] / v,) * (case["K"] * v) for kind in "FRB"))
    return simulate(schedule_of(case), costs)


def peak_kept(actions: tuple[Action, ...], *, with_activations: bool = False) -> int:
    """The most micro-batches of a rank between F and B or W, in the order of its actions.

    Args:
        actions: of the rank.
        with_activations: count only those whose activations are all there: from R, if there is one.
    """
    recomputed = {action.cell for action in actions if action.kind == "R"}
    releases = "W" if any(action.kind == "W" for action in actions) else "B"
    present = peak = 0
    for action in actions:
        if with_activations and action.cell in recomputed:
            begins = action.kind == "R"
        else:
            begins = action.kind == "F"
        present += begins - (action.kind == releases)
        peak = max(peak, present)
    return peak
