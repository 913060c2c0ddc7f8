"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The simulator, the deadlock check, the drawings of ideal schedules and the split of waiting time
(`breakdown`) all use `replay`. Pure: no torch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple

from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import GRADIENT, Action, Producer, Schedule
from repro.gpipe.schedule.timeline import Span, Timeline


class Crossing(NamedTuple):
    """How long one message takes from one rank to another.

    A link is one direction between two ranks. It carries one message at a time.

    """

    seconds: float = 0.0  # for which the message occupies the link
    latency: float = 0.0  # seconds from then until it arrives
    blocking: bool = False  # whether the sender computes nothing while the link is occupied


@collector.paused()
def replay(
    schedule: Schedule,
    duration: Callable[[Action], float],
    transfer: float | Callable[[Action], Crossing] = 0.0,
    ready: Sequence[float] | None = None,
    update: Sequence[float] | None = None,
) -> Timeline:
    """Run every action as early as the order of its rank and the messages allow.

    No rank updates before all have ended their work, since all ranks agree first that the step is
    finite.

    Args:
        schedule: what each rank does, in order.
        duration: seconds that an action takes which computes a micro-batch.
        transfer: seconds of latency of every message, or a function of the Send.
        ready: when each rank can begin, in seconds; by default at 0.
        update: seconds of each rank's U; by default 0. A U of 0 seconds has no span.

    Raises:
        DeadlockError: if some actions can never start. The message names the blocked ones.
    """
    same = Crossing(latency=0.0 if callable(transfer) else transfer)
    crossing = transfer if callable(transfer) else lambda _send: same
    clock = list(ready) if ready is not None else [0.0] * len(schedule.ranks)
    arrivals: dict[Producer, float] = {}  # message -> when it arrives
    link_free: dict[tuple[int, int], float] = {}  # (from, to) -> when the next message can leave
    spans: list[Span] = []
    end = 0.0  # of all work so far
    for action in schedule.in_order:
        # Fields by name would take a third of the time of a large replay.
        kind, rank, stage, micro_batch, of, peer = action
        now = clock[rank]
        if kind == "Recv":
            clock[rank] = max(now, arrivals[action.producer])
        elif kind == "Send":
            link = rank, peer
            seconds, latency, blocking = crossing(action)
            left = link_free[link] = max(now, link_free.get(link, now)) + seconds
            arrivals[of, stage, micro_batch] = left + latency
            if blocking:
                clock[rank] = left
        elif kind == "U":
            seconds = update[rank] if update is not None else 0.0
            if seconds:
                spans.append(Span("U", stage, -1, end, end + seconds))
            clock[rank] = max(now, end + seconds)
        else:
            clock[rank] = now + duration(action)
            spans.append(Span(kind, stage, micro_batch, now, clock[rank]))
            end = max(end, clock[rank])
    ordered = tuple(sorted(spans, key=attrgetter("start", "stage", "end")))
    return Timeline(ordered, schedule.stages, schedule.stages_per_rank)


def check(schedule: Schedule) -> None:
    """Raise a ValueError for a schedule that would deadlock, or lacks what an action needs."""
    kinds = {action.kind for actions in schedule.ranks for action in actions}
    required = ("F",)  # what a stage must do once with each micro-batch
    if not kinds.isdisjoint((*GRADIENT, "W")):
        required = ("F", "I", "W") if kinds & {"I", "W"} else ("F", "B")
    links: dict[tuple[int, int, str], dict[str, list[Action]]] = {}
    for rank, actions in enumerate(schedule.ranks):
        _check_work(schedule, rank, required)
        _check_needs(schedule, actions)
        for a in actions:
            if a.kind in ("Send", "Recv"):
                link = (rank, a.peer, a.of) if a.kind == "Send" else (a.peer, rank, a.of)
                links.setdefault(link, {"Send": [], "Recv": []})[a.kind].append(a)
    for messages in links.values():
        for send, receive in zip_longest(messages["Send"], messages["Recv"]):
            if not send or not receive or send.producer != receive.producer:
                raise ValueError(
                    f"schedule {schedule.name!r}: {receive or 'no Recv'} comes where "
                    f"{send or 'nothing'} is sent; each message is received once, in the order of "
                    "sending"
                )
    _ = schedule.in_order  # raises a DeadlockError where ranks wait for each other


def _check_work(schedule: Schedule, rank: int, required: Sequence[str]) -> None:
    """Raise a ValueError unless a rank does on each of its stages what is required, and updates."""
    name = f"schedule {schedule.name!r}"
    K, actions = len(schedule.ranks), schedule.ranks[rank]
    for action in actions:
        if action.rank != rank or action.stage % K != rank:
            raise ValueError(
                f"{name}: rank {rank} has an action of another rank or stage: {action}"
            )
    expected = Counter((kind, i) for kind in required for i in range(schedule.micro_batches))
    for stage in range(rank, schedule.stages, K):
        work = [a for a in actions if a.stage == stage and a.kind in ("F", *GRADIENT, "W")]
        if Counter((a.kind, a.micro_batch) for a in work) != expected:
            raise ValueError(
                f"{name}: stage {stage} must do each of {' and '.join(required)} 0 to "
                f"{schedule.micro_batches - 1} exactly once"
            )
    updates = [n for n, action in enumerate(actions) if action.kind == "U"]
    if updates != ([len(actions) - 1] if len(required) > 1 else []):
        raise ValueError(
            f"{name}: rank {rank} must have one U, at its end, if it trains, else no U"
        )


def _check_needs(schedule: Schedule, actions: Sequence[Action]) -> None:
    """Raise a ValueError if an action of a rank comes before what it works on."""
    # What the rank has made or received: (kind, stage, micro-batch).
    present: set[tuple[str, int, int]] = set()
    for action in actions:
        kind, stage, i = action.kind, action.stage, action.micro_batch
        needs = {
            "F": [("F", stage - 1, i)] if stage else [],
            "R": [("F", stage, i)],
            "W": [("I", stage, i)],
            "Send": [action.producer],
        }.get(kind, [])
        if kind in GRADIENT:
            needs = [("F", stage, i), (kind, stage + 1, i)][: schedule.stages - stage]
        problem = ""
        if kind == "R" and ("B", stage, i) in present:
            problem = "it must come before B"
        for needed in needs:
            if needed not in present:
                problem = f"{needed[0]}{i} of stage {needed[1]} must come before it"
        if problem:
            raise ValueError(
                f"schedule {schedule.name!r}: {action} comes at the wrong time: {problem}"
            )
        present.add(action.producer if kind == "Recv" else (kind, stage, i))


def draw(schedule: Schedule) -> str:
    """The schedule as text, one row a rank, if every action took equally long and messages none."""
    return replay(schedule, lambda _action: 1.0).to_text()
