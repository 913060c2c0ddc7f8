"""Where this process is, and which other one it waits for: written where that is known, read by `health`'s threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from repro.gpipe.errors import LostNeighbourError
from repro.gpipe.schedule.actions import Action

# Rank that is waited for, number of this wait, bytes of the message, and "send" or "receive" if it
# is a small message of the runtime, "" if it is another one.
Wait = tuple[int, int, int, str]


@dataclass
class Here:
    """Where this process is.

    Attributes:
        who: `stage 1`, or `replica 0, stage 1`.
        step: None outside of steps: while setting up, or in another library.
        action: None between steps.
        outside: what it is doing outside of steps.
        needs_others: how many blocks of `told` it is in: elsewhere it may do without a launcher.
        calls: how many calls of its Pipeline it is in.
        warm: whether it has begun a step: what imports and loads drivers may be silent for longer.
        waiting: what the computing thread waits for: a message from another rank, or that rank's
            readiness to take one. None while it computes.
        sending: the messages that other threads are sending, by thread.
        flushing: True while the computing thread waits until all of `sending` is sent.
    """

    who: str = ""
    step: int | None = None
    action: Action | None = None
    outside: str = "before its first step"
    needs_others: int = 0
    calls: int = 0
    warm: bool = False
    waiting: Wait | None = None
    sending: dict[int, Wait] = field(default_factory=dict)
    flushing: bool = False

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.who}, {self.outside}"
        doing = self.action.label if self.action else "start or end"
        return f"{self.who}, {doing} of step {self.step}"


here = Here()
_waits = count()


def named(stage: int, replica: int, replicas: int) -> str:
    """What a stage is called."""
    return f"stage {stage}" if replicas == 1 else f"replica {replica}, stage {stage}"


@contextmanager
def in_call() -> Iterator[None]:
    """Around a call of a Pipeline: who is in one is waited for without a warning, however long it takes."""
    here.calls += 1
    try:
        yield
    finally:
        here.calls -= 1


@contextmanager
def reaching(rank: int) -> Iterator[None]:
    """What a connection to this rank of the world raises when it breaks, gloo's RuntimeError too, names the rank."""
    try:
        yield
    except (ConnectionError, RuntimeError) as error:
        raise (
            error if isinstance(error, LostNeighbourError) else LostNeighbourError(rank, error)
        ) from error


@contextmanager
def waiting(rank: int, size: int, control: str = "") -> Iterator[None]:
    """Around a wait of the computing thread for this rank of the world; `size` in bytes, of the message."""
    here.waiting = rank, next(_waits), size, control
    try:
        yield
    finally:
        here.waiting = None


@contextmanager
def flushing() -> Iterator[None]:
    """Around a wait of the computing thread until the other threads have sent everything."""
    here.flushing = True
    try:
        yield
    finally:
        here.flushing = False


@contextmanager
def sending(rank: int, size: int) -> Iterator[None]:
    """Around a send of `size` bytes to this rank of the world, in a thread that does not compute."""
    me = threading.get_ident()
    here.sending[me] = rank, next(_waits), size, ""
    try:
        with reaching(rank):
            yield
    finally:
        del here.sending[me]
