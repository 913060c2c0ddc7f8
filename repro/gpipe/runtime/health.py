"""Within ten seconds every process detects that another one has failed, even while it waits.

Every process has a thread that sends heartbeats to a store and reads there whether another process
has failed. The store lives in the launcher (torchrun's agent, or the program that started the
stages), never in a stage, and carries no data.

A process that raises an exception posts its own failure. A process that dies is found by the first
to notice: the launcher by the exit code, a neighbour by a closed connection, the rank before it by
missing heartbeats. A wait inside gloo or NCCL cannot be interrupted, so a process that reads of a
failure ends itself by `os._exit`.
"""

import atexit
import json
import math
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

import torch.distributed as dist
from torch.distributed import distributed_c10d

from repro.gpipe.errors import EveryRankError, LostNeighbourError, is_refusal
from repro.gpipe.runtime.heartbeats import (
    INTERVAL,
    NO_ANSWER,
    SAME_CALLS,
    SILENCE,
    TEXT,
    UNANSWERED,
    Board,
    Failure,
    error_line,
    status_of,
)
from repro.gpipe.runtime.status import status, waiting

_POLL = 0.005  # seconds between looks for what another rank sets
_DIAGNOSIS = 3.0  # seconds in which a process that knows why a connection was lost posts it
_NO_LAUNCHER = "the launcher is gone, or the store that it holds"


class Health:
    """Heartbeats of this process `rank` of `world`, and its watch over the others.

    The store is one that no stage holds.
    """

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.board = Board(store.clone())
        self.pipelines = 0  # of rank 0, as far as this rank has followed
        self._waits = False  # whether it waited for another one at its last heartbeat
        self._failed = False  # whether this process has reported its own failure
        self._ended = threading.Event()
        self._last_answer = time.monotonic()  # of the store
        status.who = status.who or f"rank {rank}"
        status.computes_here()
        self.beat()  # whoever stops from now on is missed
        self._threads = [
            threading.Thread(target=target, name="gpipe-health", daemon=True)
            for target in (self._exchange, self._watch_store)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.end)

    def beat(self) -> None:
        """Send a heartbeat now, where the next one, within half a second, may be too late."""
        self._waits = self.board.post_heartbeat(self.rank, status)

    def report(self, error: BaseException) -> None:
        """Post that this process fails with an error, unless it has posted one already."""
        if self._failed:
            return
        self._failed = True
        # An EveryRankError names the stage itself, where that matters.
        text = str(error) if isinstance(error, EveryRankError) else f"{status}: {error_line(error)}"
        parts = [] if is_refusal(error) else traceback.format_exception(error)
        trace = "".join(part[:TEXT] for part in parts)  # a message may have any length
        # If the store is gone, so is everybody who could read the failure.
        with suppress(dist.DistError, OSError):
            self.board.post_failure(Failure(self.rank, text, status_of(error), trace))

    def exit_after_lost_neighbour(self, error: LostNeighbourError) -> None:
        """Wait for the diagnosis of a lost neighbour, print it and exit; never returns."""
        end = time.monotonic() + _DIAGNOSIS
        try:
            while (failure := self.board.failure()) is None and time.monotonic() < end:
                time.sleep(INTERVAL / 10)
            text = f"{self.board.last_seen(error.rank)}: {error}"
            if self.board.returned(error.rank) > self.board.launches:
                text = f"{status} waits for rank {error.rank}, which has ended: {SAME_CALLS}"
            failure = failure or self.board.post_failure(Failure(error.rank, text))
            _leave_because(failure.text)
        except dist.DistError:
            _leave_because(_NO_LAUNCHER)

    def wait_for(self, key: str, ranks: Iterable[int]) -> list[dict[str, str]]:
        """The values that these ranks have set in the board's store, under `<key>/<rank>`."""
        values = []
        for rank in ranks:
            awaited = f"{key}/{rank}"
            with waiting(rank, 0):
                while not self.board.store.check([awaited]):
                    time.sleep(_POLL)  # a wait inside the store would not heed a signal
            values.append(json.loads(self.board.store.get(awaited)))
        return values

    def end(self) -> None:
        """End the watch in order; report an uncaught exception, if one ends this process."""
        if self._ended.is_set():
            return
        self._ended.set()
        uncaught = getattr(sys, "last_value", None)
        if isinstance(uncaught, Exception) and not isinstance(uncaught, LostNeighbourError):
            self.report(uncaught)
        with suppress(dist.DistError, OSError):
            self.board.post_returned(self.rank, math.inf)
        # The process would abort if a thread were still in the store's C++ code when the
        # interpreter ends.
        for thread in self._threads:
            thread.join(SILENCE)

    def returned(self) -> None:
        """Post that this process has returned from a launch, one of several in a program."""
        self.board.launches += 1
        with suppress(dist.DistError):
            self.board.post_returned(self.rank, self.board.launches)

    def _exchange(self) -> None:
        while not self._ended.wait(INTERVAL):
            text = ""
            try:
                self.beat()
                if (failure := self._find_failure()) is not None:
                    text = failure.text
            except dist.DistError:
                text = _NO_LAUNCHER if status.needs_others else ""
            except Exception as error:  # of ours; it must not end a run that goes well
                warnings.warn(f"the watch over others failed: {error_line(error)}", stacklevel=1)
            self._last_answer = time.monotonic()
            if text and not self._failed and not self._ended.is_set():
                _leave_because(text)

    def _watch_store(self) -> None:
        """Exit when the store no longer answers: this host is cut off, and `_exchange` blocks."""
        woken = time.monotonic()
        while not self._ended.wait(1.0):
            before, woken = woken, time.monotonic()
            if woken - before > SILENCE / 2:  # this process was stopped, not the store
                self._last_answer = woken
            silent_for = woken - self._last_answer
            if silent_for > SILENCE and status.needs_others and not self._failed:
                # It cannot be posted, so the launcher learns it from the exit code.
                leave(f"leaving, because {NO_ANSWER}", code=UNANSWERED)

    def _find_failure(self) -> Failure | None:
        """A posted failure, missing heartbeats of the next running rank, or a cycle of waits."""
        failure = self.board.failure()
        if failure is None:
            others = ((self.rank + step) % self.world for step in range(1, self.world))
            next_running = filter(self.board.is_running, others)
            failure = self.board.find_silent([*islice(next_running, 1)])
        if failure is None and self._waits:
            failure = self.board.find_wait_cycle(self.rank)
        return failure


def _leave_because(reason: str) -> None:
    leave(f"leaving, because {reason}", code=1)


def leave(why: str, code: int) -> None:
    """Print why and end this process, whatever its other threads are waiting for."""

    def write() -> None:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            os.write(2, f"{status.who}: {why}\n".encode(errors="replace"))

    # In a thread with a time limit: nobody may read the pipe behind stderr.
    try:
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(1.0)
    finally:
        os._exit(code)


_health: Health | None = None


def begin(store: dist.Store | None, rank: int, world: int) -> Health:
    """Begin the watch over the processes of a store, once; None: the default group's store."""
    global _health
    if _health is None:
        _health = Health(store or distributed_c10d._get_default_store(), rank, world)
    return _health


def current() -> Health:
    assert _health is not None
    return _health


def begin_step(step: int) -> None:
    """Set the step of this process; the first one is posted at once, since a step may end it."""
    is_first = not status.warm
    status.step, status.action, status.warm = step, None, True
    if is_first and _health is not None:
        _health.beat()


@contextmanager
def report_errors_to_all() -> Iterator[None]:
    """Report an error raised inside to all ranks, unless it is one that all of them raise."""
    status.needs_others += 1
    try:
        yield
    except EveryRankError:
        raise
    except BaseException as error:
        if _health is not None:
            if isinstance(error, LostNeighbourError):
                _health.exit_after_lost_neighbour(error)
            _health.report(error)
        raise
    finally:
        status.needs_others -= 1


@contextmanager
def report_and_exit() -> Iterator[None]:
    """Wrap all the work of a process: report an error, which the launcher shows, and exit."""
    try:
        with report_errors_to_all():
            yield
    except BaseException as error:
        if _health is not None:
            _health.report(error)  # also an error that all ranks raise
        os._exit(1)
