"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The one walker of the project: the simulator, the deadlock check, the drawings of ideal schedules
and the split of waiting time (`breakdown`) all use it. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import Action, Schedule
from repro.gpipe.schedule.timeline import Span, Timeline


class DeadlockError(ValueError):
    """A schedule in which every rank waits for another one."""


class Crossing(NamedTuple):
    """What a message takes to another rank.

    A link, one direction between two ranks, carries one message at a time.

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
    transfer: float | Callable[[Action], Crossing] = 0.0,
    ready: Sequence[float] | None = None,
    update: Sequence[float] | None = None,
) -> Timeline:
    """Run every action as early as the order of its rank and the messages allow.

    No rank updates before all have ended their work, since they agree first that the step counts.

    Args:
        schedule: what each rank does, in order.
        duration: seconds that an F, R or B takes.
        transfer: seconds from a Send until its message is there, or what the message of each Send
            takes.
        ready: when each rank can begin, in seconds; by default at 0.
        update: seconds of each rank's U; by default 0, and then it has no span.

    Raises:
        DeadlockError: if some actions can never start; the message names the ones that block.
    """
    ranks = schedule.ranks
    crossing = transfer if callable(transfer) else None
    delay = 0.0 if callable(transfer) else transfer
    arrivals: dict[tuple[str, int, int, int], float] = {}  # maker of a message -> when it is there
    # (from, to) -> when the link can carry the next message
    free: dict[tuple[int, int], float] = {}
    spans: list[Span] = []
    clock = [*ready] if ready is not None else [0.0] * len(ranks)
    at = [0] * len(ranks)
    todo = set(range(len(ranks)))
    waiting: dict[tuple[str, int, int, int], int] = {}
    updating: set[int] = set()  # ranks whose next action is U
    while todo:
        rank = todo.pop()
        now, position, actions = clock[rank], at[rank], ranks[rank]
        while position < len(actions):
            action = actions[position]
            kind = action.kind
            if kind == "Recv":
                message = action.maker
                if message not in arrivals:
                    waiting[message] = rank
                    break
                now = max(now, arrivals[message])
            elif kind == "Send":
                message = action.maker
                if crossing is None:
                    arrivals[message] = now + delay
                else:
                    seconds, latency, blocking = crossing(action)
                    link = rank, action.peer
                    gone = free[link] = max(now, free.get(link, 0.0)) + seconds
                    arrivals[message] = gone + latency
                    now = gone if blocking else now
                if message in waiting:
                    todo.add(waiting.pop(message))
            elif kind == "U":
                updating.add(rank)
                break
            else:
                start, now = now, now + duration(action)
                spans.append(Span(kind, action.stage, action.micro_batch, start, now, action.step))
            position += 1
        clock[rank], at[rank] = now, position
        if len(updating) == len(ranks):
            end = max((span.end for span in spans), default=0.0)
            for rank in updating:
                action = ranks[rank][at[rank]]
                seconds = update[rank] if update is not None else 0.0
                if seconds:
                    spans.append(Span("U", action.stage, -1, end, end + seconds, action.step))
                clock[rank], at[rank] = max(clock[rank], end + seconds), at[rank] + 1
            todo |= updating
            updating.clear()
    if waiting or updating:
        blocked = [ranks[rank][at[rank]] for rank in sorted({*waiting.values(), *updating})]
        stuck = ", ".join(
            f"{a} waits for {'all ranks' if a.kind == 'U' else f'rank {a.peer}'}" for a in blocked
        )
        raise DeadlockError(f"the schedule deadlocks: {stuck}")
    ordered = tuple(sorted(spans, key=attrgetter("start", "stage", "end")))
    return Timeline(ordered, schedule.stages, schedule.stages_per_rank)


def check(schedule: Schedule) -> None:
    """Raise a ValueError, one line, for what would deadlock, or use or send what is not there."""
    training = any(action.kind == "B" for rank in schedule.ranks for action in rank)
    needed = sorted(
        (kind, i) for kind in ("FB" if training else "F") for i in range(schedule.micro_batches)
    )
    name = f"schedule {schedule.name!r}"
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            if action.rank != rank or action.stage % len(schedule.ranks) != rank:
                raise ValueError(
                    f"{name}: rank {rank} has an action of another rank or stage: {action}"
                )
        for stage in range(rank, schedule.stages, len(schedule.ranks)):
            own = [
                (a.kind, a.micro_batch)
                for a in actions
                if a.stage == stage and a.kind in ("F", "B")
            ]
            if sorted(own) != needed:
                raise ValueError(
                    f"{name}: stage {stage} must do each of F{' and B' * training} 0 to "
                    f"{needed[-1][1]} exactly once"
                )
        _check_data_flow(name, actions, schedule.stages)
        updates = [n for n, action in enumerate(actions) if action.kind == "U"]
        if updates != ([len(actions) - 1] if training else []):
            raise ValueError(
                f"{name}: rank {rank} must have {'one U, at its end' if training else 'no U'}"
            )
    _check_messages(name, schedule)
    replay(schedule, lambda _action: 1.0)


def _check_data_flow(name: str, actions: Sequence[Action], stages: int) -> None:
    """Raise a ValueError if an action of a rank comes before what it works on."""
    # what is here: activations, gradients (kind, stage, micro-batch)
    made: set[tuple[str, int, int]] = set()
    forwarded: set[tuple[int, int]] = set()  # and has no B yet
    for action in actions:
        kind, stage, i = action.kind, action.stage, action.micro_batch
        wrong = f"{name}: stage {stage}"
        if kind == "Recv":
            made.add(action.maker[:3])
        elif kind == "Send" and action.maker[:3] not in made:
            raise ValueError(f"{wrong} sends {action.of}{i} before it is made")
        elif kind in ("R", "B") and (stage, i) not in forwarded:
            raise ValueError(f"{wrong} does {kind}{i} at the wrong time; the order is F, R, B")
        elif kind == "F":
            if stage and ("F", stage - 1, i) not in made:
                raise ValueError(f"{wrong} does F{i} before the activations are received")
            forwarded.add((stage, i))
            made.add(("F", stage, i))
        elif kind == "B":
            if stage + 1 < stages and ("B", stage + 1, i) not in made:
                raise ValueError(f"{wrong} does B{i} before the gradient is received")
            forwarded.remove((stage, i))
            made.add(("B", stage, i))


def _check_messages(name: str, schedule: Schedule) -> None:
    """Raise a ValueError if on some link the messages are not received in the order in which they are sent."""
    sent: dict[tuple[int, int, str], list[Action]] = defaultdict(list)
    received: dict[tuple[int, int, str], list[Action]] = defaultdict(list)
    for actions in schedule.ranks:
        for action in actions:
            if action.kind == "Send":
                sent[action.rank, action.peer, action.of].append(action)
            elif action.kind == "Recv":
                received[action.peer, action.rank, action.of].append(action)
    for link in sent.keys() | received.keys():
        there, here = Counter(a.maker for a in sent[link]), Counter(a.maker for a in received[link])
        for action in (*sent[link], *received[link]):
            if (there[action.maker], here[action.maker]) != (1, 1):
                other = "Recv" if action.kind == "Send" else "Send"
                raise ValueError(
                    f"{name}: {action} must have exactly one {other} on rank {action.peer}"
                )
        for send, recv in zip(sent[link], received[link], strict=True):
            if send.maker != recv.maker:
                raise ValueError(
                    f"{name}: {recv} comes where {send} is sent; a link's messages are received in "
                    "the order of sending"
                )


def draw(schedule: Schedule) -> str:
    """The schedule as text, one row a rank, as if every action took equally long and messages no time."""
    return replay(schedule, lambda _action: 1.0).to_text()
