"""Where this process is, and which other one it waits for: written where that is known, read by `health`'s threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from repro.gpipe.errors import LostNeighbourError
from repro.gpipe.schedule import Action


@dataclass
class Here:
    """Where this process is.

    Attributes:
        who: `stage 1`, or `replica 0, stage 1`.
        step: None outside of steps: while setting up, or in another library.
        action: None between steps.
        outside: what it is doing outside of steps.
        needs_others: how many blocks of `told` it is in: elsewhere it may do without a launcher.
        warm: whether it has begun a step: what imports and loads drivers may be silent for longer.
        receiving: the rank of which it waits for a message, and the number of this wait; None while it does not wait.
        sending: for each thread that waits until a message has gone, the rank that it goes to, the wait's number, and
            the bytes of the message.
    """

    who: str = ""
    step: int | None = None
    action: Action | None = None
    outside: str = "before its first step"
    needs_others: int = 0
    warm: bool = False
    receiving: tuple[int, int] | None = None
    sending: dict[int, tuple[int, int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.who}, {self.outside}"
        doing = f"{self.action.kind}{self.action.micro_batch}" if self.action else "start or end"
        return f"{self.who}, {doing} of step {self.step}"


here = Here()
_waits = count()


def named(stage: int, replica: int, replicas: int) -> str:
    """What a stage is called."""
    return f"stage {stage}" if replicas == 1 else f"replica {replica}, stage {stage}"


@contextmanager
def reaching(rank: int) -> Iterator[None]:
    """What a connection to this rank of the world raises when it breaks, gloo's RuntimeError too, names the rank."""
    try:
        yield
    except (ConnectionError, RuntimeError) as error:
        raise error if isinstance(error, LostNeighbourError) else LostNeighbourError(rank, error) from error


@contextmanager
def receiving(rank: int) -> Iterator[None]:
    """Around a wait for a message of this rank; only the computing thread receives."""
    here.receiving = rank, next(_waits)
    try:
        with reaching(rank):
            yield
    finally:
        here.receiving = None


@contextmanager
def sending(rank: int, size: int) -> Iterator[None]:
    """Around a wait until a message of so many bytes to this rank has gone, in any thread."""
    me = threading.get_ident()
    here.sending[me] = rank, next(_waits), size
    try:
        with reaching(rank):
            yield
    finally:
        del here.sending[me]
