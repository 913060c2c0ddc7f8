"""What a rank does next in a schedule without a fixed order, from what is ready.

That is the next I if its gradient is here; else the next F if its input is here and few enough
micro-batches are kept; else R for the next I; else the next W. If none of these can be done, the
rank waits for whichever message comes first. A W so fills each wait, whatever it comes from: the
schedule, stages of other lengths, or a busy machine.

Kept are fewer than a limit from F to W, and from F to I at most one more than in 1F1B. With more of
them, an F would often begin just before a gradient comes.

Each kind goes through the micro-batches in order. So gradients, statistics and random numbers have
the bits of 1F1B. There is no deadlock: of the micro-batches whose I is missing somewhere, the first
can always go on, since what is kept behind it is only waiting for W. The idea of a schedule that
is a hint to the runtime: arXiv:2605.18750.
"""

from collections.abc import Callable, Iterator, Sequence

from repro.gpipe.schedule.actions import Schedule, Work

# Waits until one of these is here, and if the second argument is true for a moment at most.
Wait = Callable[[Sequence[Work], bool], object]


class Ready:
    """The rule for one rank, which has one stage.

    Attributes:
        limit: micro-batches that it keeps from F to W, at most.
        most_ahead: micro-batches that it keeps from F to I, at most.
        done: micro-batches of each kind, so far.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._rank, self._micro_batches = rank, schedule.micro_batches
        self.limit = schedule.limit or schedule.micro_batches
        self.most_ahead = len(schedule.orders) - rank + 1
        self._recomputes = schedule.recompute == "always"
        self.done = dict.fromkeys("FRIW", 0)

    @property
    def is_done(self) -> bool:
        """Whether all W are done."""
        return self.done["W"] == self._micro_batches

    @property
    def may_fill(self) -> bool:
        """Whether there is a W that can be done, and something else may come before it."""
        return self.done["W"] < self.done["I"] and bool(self.awaited)

    @property
    def awaited(self) -> list[Work]:
        """The I and the F that may come next, once their messages are here."""
        done, kept = self.done, self.done["F"] - self.done["W"]
        ahead = done["F"] - done["I"]
        found: list[Work] = []
        if done["I"] < done["F"]:
            found.append(("I", self._rank, done["I"]))
        if done["F"] < self._micro_batches and kept < self.limit and ahead < self.most_ahead:
            found.append(("F", self._rank, done["F"]))
        return found

    def next(self, is_here: Callable[[Work], bool]) -> Work | None:
        """The next work; None if that is the first of `awaited` of which a message comes."""
        done, awaited = self.done, self.awaited
        needs_R = self._recomputes and done["R"] == done["I"] < done["F"]
        work = next(filter(is_here, awaited), None)
        if needs_R and (work is None or work[0] == "I"):
            work = "R", self._rank, done["R"]
        elif work is None and done["W"] < done["I"]:
            work = "W", self._rank, done["W"]
        elif work is None and len(awaited) == 1:
            work = awaited[0]
        if work is not None:
            done[work[0]] += 1
        return work


def works(rule: Ready, is_here: Callable[[Work], bool], wait: Wait) -> Iterator[Work]:
    """Yield the works of a rank.

    A message may come just after a W has begun, which delays all ranks by that W. So before a W
    the rank is patient for a moment.
    """
    while not rule.is_done:
        if rule.may_fill and not any(map(is_here, rule.awaited)):
            wait(rule.awaited, True)
        work = rule.next(is_here)
        if work is None:
            wait(rule.awaited, False)
        else:
            yield work
