"""Where a step's time goes, from any Timeline: the parts of the paper's pie.

Source: the pie of the NeurIPS version of the paper, section 3.1.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain
from statistics import fmean

from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline

PARTS = ("computation", "recompute", "update", "setup", "bubble", "imbalance", "transfer")
_PART_OF: dict[str, str] = dict.fromkeys("FBIW", "computation") | {
    "R": "recompute",
    "U": "update",
    "setup": "setup",
}


def breakdown(timeline: Timeline, schedule: Schedule) -> dict[str, float]:
    """Shares of K x step time of one step of a schedule; they sum to 1.

    Work and set-up are the lengths of the spans. Waiting is split by replaying the same schedule
    with messages that take no time:

    - `bubble` is the waiting in that replay if every stage takes the mean time over stages.
    - `imbalance` is what the replay waits more if each stage takes its own mean time. It is below 0
      where an unequal cut shortens the wait, as it can with M=1 and early recompute.
    - `transfer` is the rest: messages, the runtime's overhead and jitter.
    """
    total = timeline.ranks * timeline.step_time
    parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    if not total:
        return parts
    lengths: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for kind, stage, _, start, end, _ in timeline.spans:
        parts[_PART_OF[kind]] += end - start
        lengths[kind][stage].append(end - start)
    waiting = total - sum(parts.values())
    of_kind = {kind: fmean(chain(*of.values())) for kind, of in lengths.items()}
    of_stage = {kind: {j: fmean(of[j]) for j in of} for kind, of in lengths.items()}
    mean = {kind: dict.fromkeys(of, of_kind[kind]) for kind, of in lengths.items()}
    parts["bubble"] = _idle(schedule, mean)
    parts["imbalance"] = _idle(schedule, of_stage) - parts["bubble"]
    parts["transfer"] = waiting - parts["bubble"] - parts["imbalance"]
    return {name: parts[name] / total for name in PARTS}


def _idle(schedule: Schedule, seconds: Mapping[str, Mapping[int, float]]) -> float:
    """Seconds of waiting, summed over ranks, if messages take no time and actions these seconds."""
    ideal = replay(schedule, lambda kind, stage: seconds[kind][stage])
    return len(schedule.orders) * ideal.step_time - ideal.busy()
