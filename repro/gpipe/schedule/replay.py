"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The simulator, the deadlock check, the drawings of ideal schedules and the split of waiting time
(`breakdown`) all use `replay`. Pure: no torch.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import GRADIENT, Action, Schedule
from repro.gpipe.schedule.timeline import Span, Timeline

Producer = tuple[str, int, int, int]  # see `Action.producer`


class DeadlockError(ValueError):
    """A schedule with ranks that wait for each other and never go on."""


class Crossing(NamedTuple):
    """How long one message takes from one rank to another.

    A link is one direction between two ranks. It carries one message at a time.

    Attributes:
        seconds: for which the message occupies the link.
        latency: seconds from then until it arrives.
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
    ranks = schedule.ranks
    crossing = transfer if callable(transfer) else _always(Crossing(latency=transfer))
    arrivals: dict[Producer, float] = {}  # message -> when it arrives
    link_free: dict[tuple[int, int], float] = {}  # (from, to) -> when the next message can leave
    spans: list[Span] = []

    # Each rank runs until it needs a message that is not sent yet, or until its update. It goes on
    # when that message is sent, or when all ranks have come to their update.
    clock = list(ready) if ready is not None else [0.0] * len(ranks)
    position = [0] * len(ranks)  # of the next action of each rank
    runnable = set(range(len(ranks)))
    waiting: dict[Producer, int] = {}  # message -> the rank that needs it
    updating: set[int] = set()  # ranks whose next action is U
    while runnable:
        rank = runnable.pop()
        actions, at, now = ranks[rank], position[rank], clock[rank]
        while at < len(actions):
            action = actions[at]
            if action.kind == "Recv":
                message = action.producer
                if message not in arrivals:
                    waiting[message] = rank
                    break
                now = max(now, arrivals[message])
            elif action.kind == "Send":
                message = action.producer
                link = rank, action.peer
                seconds, latency, blocking = crossing(action)
                link_free[link] = max(now, link_free.get(link, now)) + seconds
                arrivals[message] = link_free[link] + latency
                now = link_free[link] if blocking else now
                if message in waiting:
                    runnable.add(waiting.pop(message))
            elif action.kind == "U":
                updating.add(rank)
                break
            else:
                start, now = now, now + duration(action)
                spans.append(
                    Span(action.kind, action.stage, action.micro_batch, start, now, action.step)
                )
            at += 1
        position[rank], clock[rank] = at, now

        if len(updating) == len(ranks):
            end = max((span.end for span in spans), default=0.0)
            for rank in updating:
                action = ranks[rank][position[rank]]
                seconds = update[rank] if update is not None else 0.0
                if seconds:
                    spans.append(Span("U", action.stage, -1, end, end + seconds, action.step))
                clock[rank] = max(clock[rank], end + seconds)
                position[rank] += 1
            runnable = updating
            updating = set()

    blocked = [
        actions[at] for actions, at in zip(ranks, position, strict=True) if at < len(actions)
    ]
    if blocked:
        raise DeadlockError(f"the schedule deadlocks: {', '.join(map(_describe_wait, blocked))}")
    ordered = tuple(sorted(spans, key=attrgetter("start", "stage", "end")))
    return Timeline(ordered, schedule.stages, schedule.stages_per_rank)


def _always(crossing: Crossing) -> Callable[[Action], Crossing]:
    return lambda _send: crossing


def _describe_wait(action: Action) -> str:
    """`Recv F1 on stage 1 waits for rank 0`."""
    awaited = "all ranks" if action.kind == "U" else f"rank {action.peer}"
    return f"{action} waits for {awaited}"


def check(schedule: Schedule) -> None:
    """Raise a ValueError for a schedule that would deadlock, or lacks what an action needs."""
    required = _required(schedule)
    for rank, actions in enumerate(schedule.ranks):
        _check_work(schedule, rank, required)
        _check_data_flow(schedule, actions)
        _check_update(schedule, rank, required)
    _check_messages(schedule)
    replay(schedule, lambda _action: 1.0)


def _required(schedule: Schedule) -> tuple[str, ...]:
    """What a stage must do with each micro-batch: F, and if it trains B, or else I and W."""
    kinds = {action.kind for actions in schedule.ranks for action in actions}
    if kinds.isdisjoint((*GRADIENT, "W")):
        return ("F",)
    return ("F", "I", "W") if kinds & {"I", "W"} else ("F", "B")


def _check_work(schedule: Schedule, rank: int, required: Sequence[str]) -> None:
    """Raise a ValueError unless each stage of a rank does what is required exactly once."""
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


def _check_data_flow(schedule: Schedule, actions: Sequence[Action]) -> None:
    """Raise a ValueError if an action of a rank comes before what it works on."""
    # Activations and gradients that the rank has made or received: (kind, stage, micro-batch).
    present: set[tuple[str, int, int]] = set()
    forwarded: set[tuple[int, int]] = set()  # (stage, micro-batch) after its F, before its B or I
    without_w: set[tuple[int, int]] = set()  # (stage, micro-batch) after its I and before its W
    for action in actions:
        kind, stage, i = action.kind, action.stage, action.micro_batch
        where = f"schedule {schedule.name!r}: stage {stage}"
        if kind == "Recv":
            present.add(action.producer[:3])
        elif kind == "Send" and action.producer[:3] not in present:
            raise ValueError(f"{where} sends {action.of}{i} before it is made")
        elif kind in ("R", *GRADIENT) and (stage, i) not in forwarded:
            raise ValueError(
                f"{where} does {kind}{i} at the wrong time; the order is F, R, B or F, I, W"
            )
        elif kind == "W":
            if (stage, i) not in without_w:
                raise ValueError(f"{where} does W{i} at the wrong time; the order is F, I, W")
            without_w.remove((stage, i))
        elif kind == "F":
            if stage > 0 and ("F", stage - 1, i) not in present:
                raise ValueError(f"{where} does F{i} before the activations are received")
            forwarded.add((stage, i))
            present.add(("F", stage, i))
        elif kind in GRADIENT:
            if stage + 1 < schedule.stages and (kind, stage + 1, i) not in present:
                raise ValueError(f"{where} does {kind}{i} before the gradient is received")
            forwarded.remove((stage, i))
            present.add((kind, stage, i))
            if kind == "I":
                without_w.add((stage, i))


def _check_update(schedule: Schedule, rank: int, required: Sequence[str]) -> None:
    """Raise a ValueError unless a rank updates once, at its end, if the schedule trains."""
    actions = schedule.ranks[rank]
    updates = [n for n, action in enumerate(actions) if action.kind == "U"]
    expected = [len(actions) - 1] if required != ("F",) else []
    if updates != expected:
        rule = "one U, at its end" if expected else "no U"
        raise ValueError(f"schedule {schedule.name!r}: rank {rank} must have {rule}")


def _check_messages(schedule: Schedule) -> None:
    """Raise a ValueError unless every link's messages are received in the order of sending."""
    sends: dict[tuple[int, int, str], list[Action]] = defaultdict(list)
    receives: dict[tuple[int, int, str], list[Action]] = defaultdict(list)
    for actions in schedule.ranks:
        for action in actions:
            if action.kind == "Send":
                sends[action.rank, action.peer, action.of].append(action)
            elif action.kind == "Recv":
                receives[action.peer, action.rank, action.of].append(action)
    for link in sends.keys() | receives.keys():
        sent = Counter(action.producer for action in sends[link])
        received = Counter(action.producer for action in receives[link])
        for action in (*sends[link], *receives[link]):
            if sent[action.producer] != 1 or received[action.producer] != 1:
                other = "Recv" if action.kind == "Send" else "Send"
                raise ValueError(
                    f"schedule {schedule.name!r}: {action} must have exactly one {other} on rank "
                    f"{action.peer}"
                )
        for send, receive in zip(sends[link], receives[link], strict=True):
            if send.producer != receive.producer:
                raise ValueError(
                    f"schedule {schedule.name!r}: {receive} comes where {send} is sent; a link's "
                    "messages are received in the order of sending"
                )


def draw(schedule: Schedule) -> str:
    """The schedule as text, one row a rank, if every action took equally long and messages none."""
    return replay(schedule, lambda _action: 1.0).to_text()
