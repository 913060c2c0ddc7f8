"""Current status of this process (step, action, awaited peer), shared with threads of `health`."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from pathlib import Path
from types import FrameType
from typing import NamedTuple, ParamSpec, TypeVar

import torch.distributed as dist
from torch.distributed import distributed_c10d

from repro.gpipe.errors import LostNeighbourError, is_refusal
from repro.gpipe.schedule.actions import Action

P = ParamSpec("P")
T = TypeVar("T")


class Wait(NamedTuple):
    """A wait for another process."""

    rank: int  # of the awaited process, in the world
    number: int  # counts the waits of this process
    nbytes: int  # of the message
    control: str  # "send" or "receive" for a message of the control channel, else ""


@dataclass
class Status:
    """What this process is doing."""

    who: str = ""  # `stage 1`, or `replica 0, stage 1`
    step: int | None = None  # None outside of steps: during set-up, or in another library
    action: Action | None = None  # None between actions
    outside: str = "before its first step"  # what the process does outside of steps
    # How many blocks of `report_errors_to_all` it is in. Outside of them it needs no launcher.
    needs_others: int = 0
    calls: int = 0  # of its Pipeline that it is in
    # The thread that computes, the clock of its CPU time, and what that clock showed last.
    thread: int | None = None
    clock: int = -1
    computed: float = 0.0
    waiting: Wait | None = None  # what that thread waits for: a message, or that a rank takes one
    warm: bool = False  # has begun a step; before that, imports and drivers may block for long
    sending: dict[int, Wait] = field(default_factory=dict)  # by other threads: thread -> message
    flushing: bool = False  # while the computing thread waits until all of `sending` is sent

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.who}, {self.outside}"
        doing = self.action.label if self.action else "start or end"
        return f"{self.who}, {doing} of step {self.step}"

    def computes_here(self) -> None:
        """Note that the calling thread is the one that computes."""
        self.thread = threading.get_ident()
        if hasattr(time, "pthread_getcpuclockid"):  # macOS has none
            self.clock = time.pthread_getcpuclockid(self.thread)

    def is_blocked(self) -> bool:
        """Whether the computing thread has used no CPU time since the last call."""
        before, self.computed = self.computed, time.clock_gettime(self.clock)
        return self.computed == before


status = Status()
_wait_numbers = count()


def rank_name(kind: str, rank: int, replica: int, replicas: int) -> str:
    """`stage 1`, or `replica 0, stage 1`; the kind is "rank" where each holds several stages."""
    return f"{kind} {rank}" if replicas == 1 else f"replica {replica}, {kind} {rank}"


def in_call(call: Callable[P, T]) -> Callable[P, T]:
    """A call of a Pipeline.

    What it refuses is the caller's mistake, so the traceback ends here, one line below the caller.
    """

    @wraps(call)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        status.computes_here()
        status.calls += 1
        try:
            return call(*arguments, **named)
        except ValueError as error:
            if not is_refusal(error):
                raise
            refusal = error
        finally:
            status.calls -= 1
        raise refusal.with_traceback(None)

    return called


def user_collective() -> tuple[str, str, list[int]]:
    """The user's collective in which the computing thread is blocked, and its group's name, ranks.

    Empty if it is in none. A collective is a function of torch.distributed that the user's code
    calls, other than messages between two.

    The frames of a thread that computes cannot be read: where one is just being left, Python 3.11
    gives an object of a frame that is no more, and crashes.
    """
    frame = sys._current_frames().get(status.thread or 0) if status.is_blocked() else None
    collective: FrameType | None = None
    while frame and (module := frame.f_globals.get("__name__", "")).startswith("torch."):
        # The last one that is found is the one that the user has called.
        if module == distributed_c10d.__name__:
            collective = frame
        frame = frame.f_back
    if not collective or not frame or frame.f_globals.get("__name__", "").startswith("repro."):
        return "", "", []
    called = collective.f_code.co_name
    group = collective.f_locals.get("group") or dist.group.WORLD
    if "send" in called or "recv" in called or not isinstance(group, dist.ProcessGroup):
        return "", "", []
    place = f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})"
    # A group that has just been destroyed has no ranks any more.
    ranks = [*distributed_c10d._world.pg_group_ranks.get(group, ())]
    return f" in {called} of {place}", group.group_name, ranks


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
def waiting(rank: int, nbytes: int, control: str = "") -> Iterator[None]:
    """Wrap a wait of the computing thread for a rank of the world; see `Wait`."""
    status.waiting = Wait(rank, next(_wait_numbers), nbytes, control)
    try:
        yield
    finally:
        status.waiting = None


@contextmanager
def sending(rank: int, nbytes: int) -> Iterator[None]:
    """Wrap a send to a rank of the world in a thread that does not compute; see `Wait`."""
    thread = threading.get_ident()
    status.sending[thread] = Wait(rank, next(_wait_numbers), nbytes, "")
    try:
        with reaching(rank):
            yield
    finally:
        del status.sending[thread]
