"""Lay a schedule on a virtual clock: actions and durations in, a Timeline out.

The simulator, the drawings of ideal schedules and the split of waiting time
(`repro.simulate.breakdown`) all use it. Pure: no torch.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from math import inf
from typing import NamedTuple

from repro.gpipe.schedule.actions import Schedule, Work
from repro.gpipe.schedule.ready import Ready
from repro.gpipe.schedule.timeline import Span, Timeline


class Crossing(NamedTuple):
    """How long one message takes from one rank to another.

    A link is one direction between two ranks. It carries one message at a time.
    """

    seconds: float = 0.0  # for which the message occupies the link
    latency: float = 0.0  # seconds from then until it arrives
    blocking: bool = False  # whether the sender computes nothing while the link is occupied


# Of the messages that the work of one kind of a stage makes: when that of each micro-batch arrives,
# the rank that gets it, when the link can take the next one (in a list, since it changes), and how
# long it takes.
_Sends = tuple[list[float | None], int, list[float], Crossing]


def replay(
    schedule: Schedule,
    duration: Callable[[str, int], float],
    crossing: Callable[[str, int], Crossing] = lambda _kind, _stage: Crossing(),
    setup: Sequence[float] = (),
    update: Sequence[float] = (),
) -> Timeline:
    """Run every action as early as the order of its rank and the messages allow.

    No rank updates before all have ended their work, since all ranks agree first that the step is
    finite.

    Args:
        schedule: what each rank does, in order.
        duration: (kind, stage) -> seconds of that work of one micro-batch.
        crossing: (kind, stage) of what makes a message -> how long it takes; by default no time.
        setup: seconds of each stage before its rank can begin; by default 0.
        update: seconds of each rank's U; by default 0. A U of 0 seconds has no span.

    Raises:
        ValueError: if some actions can never start. It names the blocked ones.
    """
    K = len(schedule.orders)
    clock = _Clock(schedule, duration, crossing)
    setup_spans = []
    for stage, seconds in enumerate(setup):
        start = clock.free[stage % K]
        clock.free[stage % K] += seconds
        if seconds:
            setup_spans.append(Span("setup", stage, -1, start, start + seconds))
    if schedule.limit is None:
        # Each rank runs until it needs a message that is not sent yet, and again when one is sent.
        runnable = set(range(K))
        while runnable:
            rank = runnable.pop()
            runnable |= clock.advance(rank, schedule.orders[rank])
    else:
        schedule = replace(schedule, orders=_orders_of_what_is_ready(schedule, clock))
    _refuse_deadlock(schedule, clock.done)
    last = max((span.end for done in clock.done for span in done[-1:]), default=0.0)
    updates = [Span("U", rank, -1, last, last + s) for rank, s in enumerate(update) if s]
    work = sorted(chain(*clock.done), key=lambda span: (span.start, span.stage, span.end))
    every = (*setup_spans, *work, *updates)
    return Timeline(every, schedule.stages, schedule.stages_per_rank)


class _Clock:
    """The work that each rank has `done`, in its order, and when each rank is `free` again."""

    def __init__(
        self,
        schedule: Schedule,
        duration: Callable[[str, int], float],
        crossing: Callable[[str, int], Crossing],
    ) -> None:
        K, M = len(schedule.orders), schedule.micro_batches
        self.free = [0.0] * K
        self.done = [list[Span]() for _ in range(K)]
        # (kind, stage) of what makes messages -> when that of each micro-batch arrives.
        arrivals: dict[tuple[str, int], list[float | None]] = defaultdict(lambda: [None] * M)
        # (from, to) -> when the next message can leave; in a list, since it changes.
        links: dict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0])

        @cache
        def facts(kind: str, stage: int) -> tuple[float, list[float | None] | None, _Sends | None]:
            """Seconds of some work of a stage, the messages that it needs, and those it sends."""
            needed, receiver = schedule.needs(kind, stage), schedule.receiver(kind, stage)
            sends: _Sends | None = None
            if receiver is not None:
                link = links[stage % K, receiver % K]
                sends = arrivals[kind, stage], receiver % K, link, crossing(kind, stage)
            return duration(kind, stage), arrivals[needed] if needed else None, sends

        self._facts = facts

    def advance(self, rank: int, order: Sequence[Work]) -> set[int]:
        """Do the work of a rank until it needs a message that is not sent; returns who got some."""
        now, done, facts = self.free[rank], self.done[rank], self._facts
        woken = set[int]()
        for at in range(len(done), len(order)):
            kind, stage, i = order[at]
            seconds, received, sends = facts(kind, stage)
            if received:
                arrival = received[i]
                if arrival is None:
                    break
                now = max(now, arrival)
            done.append(Span(kind, stage, i, now, now + seconds))
            now += seconds
            if sends:
                sent, to, link, (occupied, latency, blocking) = sends
                left = link[0] = max(now, link[0]) + occupied
                sent[i] = left + latency
                now = left if blocking else now
                woken.add(to)
        self.free[rank] = now
        return woken

    def arrival(self, work: Work) -> float:
        """When the message that some work needs arrives; inf if it is not sent yet."""
        kind, stage, i = work
        _, received, _ = self._facts(kind, stage)
        arrival = received[i] if received else 0.0
        return inf if arrival is None else arrival


def _orders_of_what_is_ready(schedule: Schedule, clock: _Clock) -> list[list[Work]]:
    """What each rank does, by the rule of `ready`; advances the clock."""
    ranks = range(len(schedule.orders))
    rules, orders = [Ready(schedule, rank) for rank in ranks], [list[Work]() for _ in ranks]
    looks = {rank: clock.free[rank] for rank in ranks}  # when a rank looks what has arrived
    # The earliest first: what arrives until then is known.
    while looks:
        rank = min(looks, key=looks.__getitem__)
        now, order = looks.pop(rank), orders[rank]
        if len(clock.done[rank]) == len(order):
            work = rules[rank].next(lambda work, now=now: clock.arrival(work) <= now)
            if work is not None:
                order.append(work)
            else:
                first = min(map(clock.arrival, rules[rank].awaited), default=inf)
                looks |= {rank: first} if first < inf else {}
        done = len(clock.done[rank])
        woken = clock.advance(rank, order)
        woken |= {rank} if len(clock.done[rank]) > done else set()
        looks |= {each: clock.free[each] for each in woken}
    # A rank that is not done waits for something.
    return [[*order, *rule.awaited] for order, rule in zip(orders, rules, strict=True)]


def _refuse_deadlock(schedule: Schedule, done: Sequence[Sequence[Span]]) -> None:
    """Raise a ValueError that names what each rank waits for whose work has not all ended."""
    blocked = []
    for order, of_rank in zip(schedule.orders, done, strict=True):
        for kind, stage, i in order[len(of_rank) : len(of_rank) + 1]:
            of, maker = schedule.needs(kind, stage) or ("", 0)
            rank = maker % len(schedule.orders)
            blocked.append(f"Recv {of}{i} on stage {stage} waits for rank {rank}")
    if blocked:
        raise ValueError(f"the schedule deadlocks: {', '.join(blocked)}")


def draw(schedule: Schedule) -> str:
    """The schedule as text, one row a rank, if every action took equally long and messages none."""
    return replay(schedule, lambda _kind, _stage: 1.0).to_text()
