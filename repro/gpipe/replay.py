"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The one walker of the project: the simulator, the deadlock check, the drawings of ideal schedules and the split of
waiting time (`breakdown`) all use it. Pure.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from repro.gpipe.timeline import Span, Timeline

if TYPE_CHECKING:
    from repro.gpipe.schedule import Action, Schedule


class DeadlockError(ValueError):
    """A schedule in which every stage waits for another one."""


def replay(
    schedule: "Schedule",
    duration: "Callable[[Action], float]",
    transfer: float | Callable[[int, int], float] = 0.0,
) -> Timeline:
    """Run every action as early as its stage's order and its neighbour's message allow.

    Args:
        schedule: what each rank does, in order.
        duration: seconds that an action takes.
        transfer: seconds from the end of an action to the arrival of its message, or a function of the sending and
            the receiving stage.

    Raises:
        DeadlockError: if some actions can never start; the message names the ones that block.
    """
    return walk(schedule.ranks, schedule.needs, duration, transfer)


def walk(
    ranks: "Sequence[Sequence[Action]]",
    needs: "Callable[[Action], Action | None]",
    duration: "Callable[[Action], float]",
    transfer: float | Callable[[int, int], float] = 0.0,
) -> Timeline:
    """`replay` for bare lists of actions: `needs` names the action whose message another one waits for."""
    delay = transfer if callable(transfer) else lambda _source, _target: transfer
    ends: dict[Action, float] = {}
    spans: list[Span] = []
    clock = [0.0] * len(ranks)
    at = [0] * len(ranks)
    todo = set(range(len(ranks)))
    waiting: dict[Action, list[int]] = {}
    while todo:
        rank = todo.pop()
        while at[rank] < len(ranks[rank]):
            action = ranks[rank][at[rank]]
            need = needs(action)
            if need is not None and need not in ends:
                waiting.setdefault(need, []).append(rank)
                break
            arrival = 0.0 if need is None else ends[need] + delay(need.stage, action.stage)
            start = max(clock[rank], arrival)
            clock[rank] = ends[action] = start + duration(action)
            spans.append(Span(action.kind, action.stage, action.micro_batch, start, clock[rank], action.step))
            at[rank] += 1
            todo.update(waiting.pop(action, ()))
    if waiting:
        stuck = ", ".join(f"{ranks[r][at[r]]} waits for {need}" for need, rs in waiting.items() for r in rs)
        raise DeadlockError(f"the schedule deadlocks: {stuck}")
    return Timeline(tuple(sorted(spans, key=lambda s: (s.start, s.stage, s.end))), len(ranks))
