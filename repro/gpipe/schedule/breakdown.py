"""Where a step's time goes, from any Timeline: the parts of the paper's pie (NeurIPS version, section 3.1)."""

from collections import defaultdict
from statistics import fmean

from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline

PARTS = ("computation", "recompute", "update", "setup", "bubble", "imbalance", "transfer")


def breakdown(timeline: Timeline, schedule: Schedule | None = None) -> dict[str, float]:
    """Shares of K x step time; they sum to 1.

    Work and set-up are read off the spans. Waiting is split by replaying the same order of actions with free
    messages: `bubble` is the waiting that remains when every stage takes the mean time, `imbalance` is what each
    stage's own mean time adds, and `transfer` is the rest: messages, the runtime's overhead and jitter. `imbalance`
    is below 0 where an unequal cut shortens the wait, as it can with M=1 and early recompute.

    Args:
        timeline: of one step.
        schedule: what was run; by default recompute is taken not to wait for its gradient.
    """
    total = timeline.stages * timeline.step_time
    if not total:
        return dict.fromkeys(PARTS, 0.0)
    parts = {
        "computation": timeline.busy(kinds="FB"),
        "recompute": timeline.busy(kinds="R"),
        "update": timeline.busy(kinds="U"),
        "setup": timeline.busy(kinds=("setup",)),
    }
    waiting = total - sum(parts.values())
    early = schedule is None or schedule.early
    parts["bubble"] = _idle(timeline, early, by_stage=False)
    parts["imbalance"] = _idle(timeline, early, by_stage=True) - parts["bubble"]
    parts["transfer"] = waiting - parts["bubble"] - parts["imbalance"]
    return {name: parts[name] / total for name in PARTS}


def _idle(timeline: Timeline, early: bool, *, by_stage: bool) -> float:
    """Seconds of waiting, summed over stages, when actions take the mean time of their kind (and stage)."""
    lengths: dict[tuple[str, int], list[float]] = defaultdict(list)
    ranks: list[tuple[Action, ...]] = []
    for j in range(timeline.stages):
        work = [s for s in timeline.on(j) if s.kind in "FRB"]
        ranks.append(tuple(Action(s.kind, j, s.micro_batch) for s in work))
        for s in work:
            lengths[s.kind, j if by_stage else 0].append(s.seconds)
    means = {key: fmean(values) for key, values in lengths.items()}
    recorded = Schedule("recorded", timeline.stages, 0, "", tuple(ranks), early)
    ideal = replay(recorded, lambda a: means[a.kind, a.stage if by_stage else 0])
    return timeline.stages * ideal.step_time - ideal.busy()
