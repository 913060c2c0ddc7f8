"""A stage that fails is known to every other one within seconds, whatever each of them is waiting for.

Every process has a thread that reports to the store what the process last did, and reads there whether another one has
failed. The store lives in the launcher (torchrun's agent, or the program that started the stages), never in a stage,
and no data goes over its sockets. A process that raises says so itself; one that dies is found by whoever sees it
first: the launcher by its exit, a neighbour by a closed connection, and the rank before it by its silence. A wait
inside gloo or NCCL cannot be interrupted, so whoever reads of a failure leaves by `os._exit`.
"""

import atexit
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from repro.gpipe.errors import EveryRankError, LostNeighbourError
from repro.gpipe.schedule import Action

INTERVAL = 0.5  # seconds between two reports
SILENCE = float(os.environ.get("GPIPE_SILENCE_S", "7"))  # without a report, from a process that is in a step
SETTING_UP = max(60.0, SILENCE)  # the same before its first step: imports and drivers may hold Python's lock for long
_WORD = 3.0  # seconds in which the cause of a lost connection is told by somebody who knows it
_FAILURE = "failure"
_NO_LAUNCHER = "the launcher is gone, or the store that it holds"


@dataclass(frozen=True)
class Failure:
    """What ended a group.

    Attributes:
        rank: where it happened.
        status: "failed" or "oom".
        text: one line that names the stage and its last action.
        traceback: of what was raised, if that was it.
    """

    rank: int
    status: str
    text: str
    traceback: str = ""


@dataclass
class _Here:
    """Where this process is: written by the engine, read by the reporting thread."""

    who: str = ""
    step: int | None = None  # None outside of steps: while setting up, or in another library
    action: Action | None = None  # None between steps
    outside: str = "before its first step"
    needs_others: int = 0  # how many blocks of `told` it is in: elsewhere it may do without a launcher

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.who}, {self.outside}"
        doing = f"{self.action.kind}{self.action.micro_batch}" if self.action else "start or end"
        return f"{self.who}, {doing} of step {self.step}"


here = _Here()


class Health:
    """This process's part in watching over all of them.

    Args:
        store: a client of its own, for a store that no stage holds.
        rank: of the world.
        world: how many ranks there are.
    """

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.store = board(store)
        self.waiting = self.store.clone()  # a client that waits lets nobody else ask
        self.pipelines = 0  # of rank 0, as far as this one has followed
        self._beats = 0
        self._failed = False  # here, and said so
        self._ended = threading.Event()
        self._heard = self._looked = self._changed = time.monotonic()
        self._last = (-1, "")
        here.who = here.who or f"rank {rank}"
        for work in (self._tell, self._mind):
            threading.Thread(target=work, name=f"gpipe-health{work.__name__}", daemon=True).start()
        atexit.register(self.end)

    def beat(self) -> None:
        """Report where this process is; it is done twice a second, so call it only where that may be too late."""
        self._beats += 1
        beat = {"number": self._beats, "here": str(here), "in_steps": here.step is not None}
        self.store.set(f"beat/{self.rank}", json.dumps(beat))

    def report(self, error: BaseException) -> None:
        """Tell all that this process fails of an error, with its traceback."""
        if self._failed:
            return
        self._failed = True
        text = f"{here}: {' '.join(''.join(traceback.format_exception_only(error)).split())}"
        if isinstance(error, EveryRankError):  # it says itself where, if that matters
            text = str(error)
        said = "".join(traceback.format_exception(error))
        with suppress(dist.DistError):  # the store is gone, and with it everybody who could read this
            post(self.store, Failure(self.rank, status_of(error), text[:1000], said))

    def bereaved(self, error: LostNeighbourError) -> None:
        """Leave for want of a neighbour, once it is known what became of it; never returns."""
        end = time.monotonic() + _WORD
        try:
            while (failure := posted(self.store)) is None and time.monotonic() < end:
                time.sleep(INTERVAL / 10)
            text = f"{last_seen(self.store, error.rank)}: {error}"
            self._leave(failure or post(self.store, Failure(error.rank, "failed", text)))
        except dist.DistError:
            self._leave(Failure(self.rank, "failed", _NO_LAUNCHER))

    def wait_for(self, key: str, ranks: Iterable[int]) -> list[dict[str, str]]:
        """What these ranks have set there, each under its own number, as soon as all of them have.

        Raises:
            ValueError: if one of them ends without.
        """
        keys = {rank: f"{key}/{rank}" for rank in ranks}
        pause = 0.001
        while missing := [rank for rank, own in keys.items() if not self.waiting.check([own])]:
            for rank in missing:
                if self.waiting.check([f"farewell/{rank}"]) and not self.waiting.check([keys[rank]]):
                    raise ValueError(f"rank {rank} ended, and never built the Pipeline that {here.who} waits for")
            time.sleep(pause)
            pause = min(2 * pause, INTERVAL)
        return [json.loads(raw) for raw in self.waiting.multi_get(list(keys.values()))]

    def end(self) -> None:
        """Say farewell: who is done is not missed. An uncaught exception is reported instead."""
        if self._ended.is_set():
            return
        self._ended.set()
        uncaught = getattr(sys, "last_value", None)
        if isinstance(uncaught, Exception) and not isinstance(uncaught, LostNeighbourError):
            self.report(uncaught)
        with suppress(dist.DistError):
            self.store.set(f"farewell/{self.rank}", "")

    def _tell(self) -> None:
        """Report, and read what others report, until the end."""
        while not self._ended.wait(INTERVAL):
            try:
                self.beat()
                failure = posted(self.store) or self._silence()
            except dist.DistError:
                failure = Failure(self.rank, "failed", _NO_LAUNCHER) if here.needs_others else None
            self._heard = time.monotonic()
            if failure is not None and not self._failed and not self._ended.is_set():
                self._leave(failure)

    def _mind(self) -> None:
        """Leave when the store does not even refuse: this host is cut off, and asking it waits for ever."""
        woken = time.monotonic()
        while not self._ended.wait(1.0):
            before, woken = woken, time.monotonic()
            if woken - before > SILENCE / 2:  # this process was stopped, not the store
                self._heard = woken
            if woken - self._heard > SILENCE and here.needs_others and not self._failed:
                self._leave(Failure(self.rank, "failed", f"no answer from the launcher for {SILENCE:.0f} s"))

    def _silence(self) -> Failure | None:
        """Watch over the next rank that has begun and not ended."""
        now = time.monotonic()
        if now - self._looked > SILENCE / 2:  # it is this process that was stopped
            self._changed = now
        self._looked = now
        watched = next((rank for rank in self._others() if self._is_watched(rank)), None)
        if watched is None:
            return None
        raw = self.store.get(f"beat/{watched}").decode()
        if (watched, raw) != self._last:
            self._last, self._changed = (watched, raw), now
            return None
        beat = json.loads(raw)
        patience = SILENCE if beat["in_steps"] else SETTING_UP
        if now - self._changed < patience:
            return None
        hint = "a layer that holds Python's lock for as long needs a larger GPIPE_SILENCE_S"
        text = f"{last_seen(self.store, watched)}: no sign of life for {patience:.0f} s ({hint})"
        return post(self.store, Failure(watched, "failed", text))

    def _others(self) -> Iterator[int]:
        return ((self.rank + step) % self.world for step in range(1, self.world))

    def _is_watched(self, rank: int) -> bool:
        return self.store.check([f"beat/{rank}"]) and not self.store.check([f"farewell/{rank}"])

    def _leave(self, failure: Failure) -> None:
        """End this process, whatever its other threads wait for."""
        with suppress(Exception):
            sys.stdout.flush()
        os.write(2, f"{here.who}: leaving, because {failure.text}\n".encode())
        os._exit(1)


_own: Health | None = None


def begin(store: dist.Store | None, rank: int, world: int) -> Health:
    """Watch over the processes of a store, once; None takes that of the default process group."""
    global _own
    if _own is None:
        _own = Health((store or distributed_c10d._get_default_store()).clone(), rank, world)
    return _own


def current() -> Health:
    """The watch that was begun."""
    assert _own is not None
    return _own


@contextmanager
def told() -> Iterator[None]:
    """What is raised inside concerns all ranks, unless all of them raise it."""
    here.needs_others += 1
    try:
        yield
    except EveryRankError:
        raise
    except LostNeighbourError as error:
        if _own is not None:
            _own.bereaved(error)
        raise
    except BaseException as error:
        if _own is not None:
            _own.report(error)
        raise
    finally:
        here.needs_others -= 1


@contextmanager
def last_words() -> Iterator[None]:
    """Around all that a process is for: an error is left to the launcher to tell, once, and ends the process."""
    try:
        with told():
            yield
    except BaseException as error:
        if _own is not None:
            _own.report(error)  # also one that all ranks raise
        os._exit(1)


def board(store: dist.Store) -> dist.Store:
    """The part of a store where failures and signs of life are posted."""
    return dist.PrefixStore("gpipe-health", store)


def post(board: dist.Store, failure: Failure) -> Failure:
    """Make a failure known, unless there is one: the first is the cause, the others its consequences. Returns it."""
    return Failure(**json.loads(board.compare_set(_FAILURE, "", json.dumps(asdict(failure)))))


def posted(board: dist.Store) -> Failure | None:
    """The failure that is known."""
    return Failure(**json.loads(board.get(_FAILURE))) if board.check([_FAILURE]) else None


def last_seen(board: dist.Store, rank: int) -> str:
    """`stage 1, F3 of step 2 when last heard of`."""
    if not board.check([f"beat/{rank}"]):
        return f"rank {rank}"
    return f"{json.loads(board.get(f'beat/{rank}'))['here']} when last heard of"


def post_death(board: dist.Store, rank: int, how: str) -> Failure:
    """Make known that a process was seen to end, and how; what caused that, if it is known already, comes back."""
    return post(board, Failure(rank, "failed", f"{last_seen(board, rank)}: died ({how})"))


def status_of(error: BaseException) -> str:
    """The status word for a run that ends in this error."""
    full = isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
    return "oom" if full else "failed"
