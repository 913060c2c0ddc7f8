"""A stage that fails is known to every other one within seconds, whatever each of them is waiting for.

Every process has a thread that reports to the store what the process last did, and reads there
whether another one has failed. The store lives in the launcher (torchrun's agent, or the program
that started the stages), never in a stage, and no data goes over its sockets. A process that raises
says so itself; one that dies is found by whoever sees it first: the launcher by its exit, a
neighbour by a closed connection, and the rank before it by its silence. A wait inside gloo or NCCL
cannot be interrupted, so whoever reads of a failure leaves by `os._exit`.
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

import torch.distributed as dist
from torch.distributed import distributed_c10d

from repro.gpipe.errors import EveryRankError, LostNeighbourError
from repro.gpipe.runtime.heartbeats import (
    INTERVAL,
    SAME_CALLS,
    SILENCE,
    Failure,
    Watch,
    board,
    has_ended,
    last_seen,
    post,
    post_beat,
    post_farewell,
    post_returned,
    posted,
    said_farewell,
    status_of,
    words,
)
from repro.gpipe.runtime.status import here, waiting

_WORD = 3.0  # seconds in which the cause of a lost connection is told by somebody who knows it
_NO_LAUNCHER = "the launcher is gone, or the store that it holds"


class Health:
    """This process's part in watching over all of them.

    Args:
        store: one that no stage holds; kept, for what C++ makes of it does not keep it.
        rank: of the world.
        world: how many ranks there are.
    """

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self._given = store
        self.store = board(store)
        self.waiting = self.store.clone()  # a client that waits lets nobody else ask
        self.pipelines = 0  # of rank 0, as far as this one has followed
        self._beats = 0
        self.launches = 0  # of this program, under torchrun
        self._failed = False  # here, and said so
        self._ended = threading.Event()
        self._heard = time.monotonic()
        self._watch = Watch(self.store)
        here.who = here.who or f"rank {rank}"
        works = (self._tell, self._mind)
        self._threads = [
            threading.Thread(target=w, name=f"gpipe-health{w.__name__}", daemon=True) for w in works
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.end)

    def beat(self) -> None:
        """Report where this process is; it is done twice a second, so call it only where that may be too late."""
        self._beats += 1
        post_beat(self.store, self.rank, self._beats, here)

    def report(self, error: BaseException) -> None:
        """Tell all that this process fails of an error, with its traceback."""
        if self._failed:
            return
        self._failed = True
        # What concerns every rank says itself where, if that matters.
        text = str(error) if isinstance(error, EveryRankError) else f"{here}: {words(error)}"
        said = "".join(traceback.format_exception(error))
        # the store is gone, and with it everybody who could read this
        with suppress(dist.DistError):
            post(self.store, Failure(self.rank, status_of(error), text, said))

    def bereaved(self, error: LostNeighbourError) -> None:
        """Leave for want of a neighbour, once it is known what became of it; never returns."""
        end = time.monotonic() + _WORD
        try:
            while (failure := posted(self.store)) is None and time.monotonic() < end:
                time.sleep(INTERVAL / 10)
            text = f"{last_seen(self.store, error.rank)}: {error}"
            if has_ended(self.store, error.rank, self.launches):
                text = f"{here} waits for rank {error.rank}, which has ended: {SAME_CALLS}"
            self._leave(failure or post(self.store, Failure(error.rank, "failed", text)))
        except dist.DistError:
            self._leave(Failure(self.rank, "failed", _NO_LAUNCHER))

    def wait_for(self, key: str, ranks: Iterable[int]) -> list[dict[str, str]]:
        """What these ranks have set there, each under its own number, as soon as all of them have.

        Raises:
            ValueError: if one of them ends without.
        """
        keys = {rank: f"{key}/{rank}" for rank in ranks}
        for rank, own in keys.items():
            if not self.waiting.check([own]):
                with waiting(rank, 0):
                    self._wait_for(own, keys)
        return [json.loads(raw) for raw in self.waiting.multi_get(list(keys.values()))]

    def _wait_for(self, own: str, keys: dict[int, str]) -> None:
        """Wait for one of these keys; raises a ValueError if a rank ends without its own."""
        pause = 0.001
        while not self.waiting.check([own]):
            for rank, key in keys.items():
                if has_ended(self.waiting, rank, self.launches) and not self.waiting.check([key]):
                    raise ValueError(
                        f"rank {rank} ended, and never built the Pipeline that {here.who} waits for"
                    )
            time.sleep(pause)
            pause = min(2 * pause, INTERVAL)

    def end(self) -> None:
        """Say farewell: who is done is not missed. An uncaught exception is reported instead."""
        if self._ended.is_set():
            return
        self._ended.set()
        uncaught = getattr(sys, "last_value", None)
        if isinstance(uncaught, Exception) and not isinstance(uncaught, LostNeighbourError):
            self.report(uncaught)
        with suppress(dist.DistError):
            post_farewell(self.store, self.rank)
        # A thread that is still in the store's C++ code when the interpreter ends would abort the
        # process.
        for thread in self._threads:
            thread.join(SILENCE)

    def returned(self) -> None:
        """Say that this launch, one of several in a program, has come to its end here."""
        with suppress(dist.DistError):
            post_returned(self.store, self.rank, self.launches)
        self.launches += 1

    def _tell(self) -> None:
        """Report, and read what others report, until the end."""
        while not self._ended.wait(INTERVAL):
            try:
                self.beat()
                failure = self._trouble()
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
                self._leave(
                    Failure(self.rank, "failed", f"no answer from the launcher for {SILENCE:.0f} s")
                )

    def _trouble(self) -> Failure | None:
        """What is posted; silence of the next rank that has begun and not ended; a wait that can never end."""
        if (failure := posted(self.store)) is not None:
            return failure
        others = ((self.rank + step) % self.world for step in range(1, self.world))
        begun = (
            rank
            for rank in others
            if self.store.check([f"beat/{rank}"]) and not said_farewell(self.store, rank)
        )
        failure = self._watch.silence([rank] if (rank := next(begun, None)) is not None else [])
        if failure is None and (here.waiting is not None or here.flushing):
            failure = self._watch.knot(self.rank, self.launches)
        return failure

    def _leave(self, failure: Failure) -> None:
        """End this process, whatever its other threads wait for, and whether or not anybody reads what it says."""

        def speak() -> None:
            with suppress(Exception):
                sys.stdout.flush()
            with suppress(OSError):
                os.write(
                    2, f"{here.who}: leaving, because {failure.text}\n".encode(errors="replace")
                )

        try:
            speaker = threading.Thread(target=speak, daemon=True)
            speaker.start()
            speaker.join(1.0)
        finally:
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
