"""Current status of this process (step, action, awaited peer), shared with threads of `health`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from repro.gpipe.errors import LostNeighbourError
from repro.gpipe.schedule.actions import Action


class Wait(NamedTuple):
    """A wait for another process."""

    rank: int  # of the awaited process, in the world
    number: int  # counts the waits of this process


@dataclass
class Status:
    """What this process is doing."""

    who: str = ""  # `stage 1`, or `replica 0, stage 1`
    step: int | None = None  # None outside of steps: during set-up, or in another library
    action: Action | None = None  # None between actions
    outside: str = "before its first step"  # what the process does outside of steps
    # How many blocks of `report_errors_to_all` it is in. Outside of them it needs no launcher.
    needs_others: int = 0
    waiting: Wait | None = None  # of the computing thread
    sending: set[object] = field(default_factory=set)  # links and threads whose sends may go on
    ended: bool = False  # makes no more calls: it ends, or has returned from a launch

    def __str__(self) -> str:
        if self.ended:
            return f"{self.who}, which has ended"
        if self.step is None:
            return f"{self.who}, {self.outside}"
        doing = self.action.label if self.action else "start or end"
        return f"{self.who}, {doing} of step {self.step}"


status = Status()
_wait_numbers = count()


def rank_name(kind: str, rank: int, replica: int, replicas: int) -> str:
    """`stage 1`, or `replica 0, stage 1`; the kind is "rank" where each holds several stages."""
    return f"{kind} {rank}" if replicas == 1 else f"replica {replica}, {kind} {rank}"


@contextmanager
def reaching(rank: int) -> Iterator[None]:
    """Raise the error of a broken connection as a LostNeighbourError of this rank of the world."""
    try:
        yield
    except LostNeighbourError:
        raise
    except (ConnectionError, RuntimeError) as error:  # gloo raises a RuntimeError
        raise LostNeighbourError(rank, error) from error


@contextmanager
def waiting(rank: int) -> Iterator[None]:
    """Wrap a wait of the computing thread for a rank of the world."""
    status.waiting = Wait(rank, next(_wait_numbers))
    try:
        yield
    finally:
        status.waiting = None


@contextmanager
def sending() -> Iterator[None]:
    """Wrap the part of a send that may block."""
    thread = threading.get_ident()
    status.sending.add(thread)
    try:
        yield
    finally:
        status.sending.discard(thread)
