"""Where a step's time goes, from any Timeline: the parts of the paper's pie.

Source: the pie of the NeurIPS version of the paper, section 3.1.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import chain
from statistics import fmean

from repro.gpipe.schedule.actions import COMPUTE, Action, Schedule
from repro.gpipe.schedule.kinds import schedule_from_orders
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline

PARTS = ("computation", "recompute", "update", "setup", "bubble", "imbalance", "transfer")


def breakdown(timeline: Timeline, schedule: Schedule | None = None) -> dict[str, float]:
    """Shares of K x step time; they sum to 1.

    Work and set-up are the lengths of the spans. Waiting is split by replaying the same schedule
    with messages that take no time:

    - `bubble` is the waiting in that replay if every stage takes the mean time over stages.
    - `imbalance` is what the replay waits more if each stage takes its own mean time. It is below 0
      where an unequal cut shortens the wait, as it can with M=1 and early recompute.
    - `transfer` is the rest: messages, the runtime's overhead and jitter.

    Args:
        timeline: of one step.
        schedule: what was run; by default the order of the spans, with early recompute.
    """
    total = timeline.ranks * timeline.step_time
    if not total:
        return dict.fromkeys(PARTS, 0.0)
    parts = {
        "computation": timeline.busy(kinds="FBIW"),
        "recompute": timeline.busy(kinds="R"),
        "update": timeline.busy(kinds="U"),
        "setup": timeline.busy(kinds=("setup",)),
    }
    waiting = total - sum(parts.values())
    if schedule is None:
        orders = [
            [(s.kind, s.stage, s.micro_batch) for s in timeline.on(rank) if s.kind in COMPUTE]
            for rank in range(timeline.ranks)
        ]
        held = timeline.stages_per_rank
        schedule = schedule_from_orders("recorded", 0, "", orders, stages_per_rank=held)
    lengths: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for span in timeline.spans:
        lengths[span.kind][span.stage].append(span.seconds)
    means = {kind: fmean(chain(*of.values())) for kind, of in lengths.items()}
    means_on = {kind: {j: fmean(of[j]) for j in of} for kind, of in lengths.items()}
    parts["bubble"] = _idle(schedule, lambda a: means[a.kind])
    parts["imbalance"] = _idle(schedule, lambda a: means_on[a.kind][a.stage]) - parts["bubble"]
    parts["transfer"] = waiting - parts["bubble"] - parts["imbalance"]
    return {name: parts[name] / total for name in PARTS}


def _idle(schedule: Schedule, duration: Callable[[Action], float]) -> float:
    """Seconds of waiting, summed over ranks, if messages take no time."""
    ideal = replay(schedule, duration)
    return ideal.ranks * ideal.step_time - ideal.busy()
