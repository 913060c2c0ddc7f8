"""The ideal of a schedule, and what stands below ratios of recorded runs."""

from functools import cache
from math import nan

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.about import NO_INTERVAL
from repro.paper.theory import UNIT_COSTS

MARKS = (
    f"[low, high]: bootstrap 95 % interval over rounds and their blocks, {NO_INTERVAL}; ~ where it "
    "spans 1: no difference shown."
)


@cache
def ideal(K: int, M: int, schedule: str, remat: str) -> Timeline | None:
    """This schedule with F:R:B = 1:1:2, equal stages and free messages.

    None if it is not ours, or if its ranks hold several stages, whose number is not named here. For
    "gpipe" with re-materialization always its step is `paper.theory`'s early form; with never,
    the plain one.
    """
    if schedule not in SCHEDULES or SCHEDULES[schedule].interleaved:
        return None
    return replay(make_schedule(schedule, K, M, remat), lambda action: UNIT_COSTS[action.kind])


def ideal_over_k1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal's speedup over one stage, which has no bubble, at the same N and M."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(1, M, schedule, remat)


def ideal_over_k2m1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal in Table 2's normalisation, at one fixed N."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(2, 1, schedule, remat)


def _ideal_rate(K: int, M: int, schedule: str, remat: str) -> float:
    """Mini-batches per time, in units of the forward work of the whole model and mini-batch."""
    timeline = ideal(K, M, schedule, remat)
    return nan if timeline is None else K * M / timeline.step_time
