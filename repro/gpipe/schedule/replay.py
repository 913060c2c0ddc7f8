"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The one walker of the project: the simulator, the deadlock check, the drawings of ideal schedules and the split of
waiting time (`breakdown`) all use it. Pure.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.timeline import Span, Timeline


class DeadlockError(ValueError):
    """A schedule in which every stage waits for another one."""


class Crossing(NamedTuple):
    """What a message takes to the neighbouring stage.

    A link, one direction between two stages, carries one message at a time.

    Attributes:
        seconds: for which it occupies the link.
        latency: seconds from then until it is there.
        blocking: whether the sender computes nothing while its message occupies the link.
    """

    seconds: float = 0.0
    latency: float = 0.0
    blocking: bool = False


@collector.paused()
def replay(
    schedule: Schedule,
    duration: Callable[[Action], float],
    transfer: float | Callable[[Action, int], Crossing] = 0.0,
    ready: Sequence[float] | None = None,
) -> Timeline:
    """Run every action as early as its stage's order and its neighbour's message allow.

    Args:
        schedule: what each rank does, in order.
        duration: seconds that an action takes.
        transfer: seconds from the end of an action to the arrival of its message, or what the message of an action
            takes to a stage.
        ready: when each stage can begin, in seconds; by default at 0.

    Raises:
        DeadlockError: if some actions can never start; the message names the ones that block.
    """
    ranks, needs = schedule.ranks, schedule.needs
    crossing = transfer if callable(transfer) else None
    delay = 0.0 if callable(transfer) else transfer
    arrivals: dict[Action, float] = {}
    free: dict[tuple[int, int], float] = {}  # (from, to) -> when the link can carry the next message
    spans: list[Span] = []
    clock = [*ready] if ready is not None else [0.0] * len(ranks)
    at = [0] * len(ranks)
    todo = set(range(len(ranks)))
    waiting: dict[Action, int] = {}
    while todo:
        rank = todo.pop()
        now, position, actions = clock[rank], at[rank], ranks[rank]
        while position < len(actions):
            action = actions[position]
            need = needs(action)
            if need is not None:
                if need not in arrivals:
                    waiting[need] = rank
                    break
                now = max(now, arrivals[need])
            kind, stage, micro_batch, step = action
            start, now = now, now + duration(action)
            spans.append(Span(kind, stage, micro_batch, start, now, step))
            position += 1
            target = schedule.receiver(action) if crossing else None
            if crossing is None or target is None:
                arrivals[action] = now + delay
            else:
                seconds, latency, blocking = crossing(action, target)
                gone = free[stage, target] = max(now, free.get((stage, target), 0.0)) + seconds
                arrivals[action] = gone + latency
                now = gone if blocking else now
            if action in waiting:
                todo.add(waiting.pop(action))
        clock[rank], at[rank] = now, position
    if waiting:
        stuck = ", ".join(f"{ranks[rank][at[rank]]} waits for {need}" for need, rank in waiting.items())
        raise DeadlockError(f"the schedule deadlocks: {stuck}")
    return Timeline(tuple(sorted(spans, key=attrgetter("start", "stage", "end"))), len(ranks))


def check(schedule: Schedule) -> None:
    """Raise a ValueError, one line, for what would deadlock or leave a message without a receiver."""
    training = any(action.kind == "B" for rank in schedule.ranks for action in rank)
    needed = sorted((kind, i) for kind in ("FB" if training else "F") for i in range(schedule.micro_batches))
    for j, actions in enumerate(schedule.ranks):
        wrong = f"schedule {schedule.name!r}: stage {j}"
        at = {(action.kind, action.micro_batch): n for n, action in enumerate(actions)}
        if any(action.stage != j for action in actions):
            raise ValueError(f"{wrong} has an action of another stage; the n-th list is stage n's")
        if sorted((a.kind, a.micro_batch) for a in actions if a.kind != "R") != needed:
            raise ValueError(f"{wrong} must do each of F{' and B' * training} 0 to {needed[-1][1]} exactly once")
        for kind, i in at:
            if (kind == "B" and at["F", i] > at["B", i]) or (
                kind == "R" and not at["F", i] < at["R", i] < at.get(("B", i), -1)
            ):
                raise ValueError(f"{wrong} does {kind}{i} at the wrong time; the order is F, R, B")
    replay(schedule, lambda _action: 1.0)


def draw(schedule: Schedule) -> str:
    """The schedule as text, one row a stage, as if every action took equally long and messages no time."""
    return replay(schedule, lambda _action: 1.0).to_text()
