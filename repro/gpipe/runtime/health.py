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
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from repro.gpipe.errors import EveryRankError, LostNeighbourError, is_refusal
from repro.gpipe.runtime.heartbeats import (
    INTERVAL,
    SILENCE,
    TEXT,
    Board,
    Failure,
    error_line,
    status_of,
)
from repro.gpipe.runtime.status import status

_DIAGNOSIS = 3.0  # seconds in which a process that knows why a connection was lost posts it
_NO_LAUNCHER = "the launcher is gone, or the store that it holds"
NO_ANSWER = f"no answer from the launcher for {SILENCE:.0f} s"


class Health:
    """Heartbeats of this process `rank` of `world`, and its watch over the others.

    The store is one that no stage holds.
    """

    def __init__(self, store: dist.Store, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world
        self.board = Board(store.clone())
        self._failed = False  # whether this process has reported its own failure
        self._ended = threading.Event()
        self._exchanges = 0  # with the store
        status.who = status.who or f"rank {rank}"
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
        self.board.post_heartbeat(self.rank, status)

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
        time.sleep(_DIAGNOSIS)
        try:
            text = f"{self.board.last_seen(error.rank)}: {error}"
            reason = self.board.post_failure(Failure(error.rank, text)).text
        except dist.DistError:
            reason = _NO_LAUNCHER
        _leave_because(reason)

    def end(self) -> None:
        """End the watch in order; report an uncaught exception, if one ends this process."""
        if self._ended.is_set():
            return
        self._ended.set()
        uncaught = getattr(sys, "last_value", None)
        if isinstance(uncaught, Exception) and not isinstance(uncaught, LostNeighbourError):
            self.report(uncaught)
        # The process would abort if a thread were still in the store's C++ code when the
        # interpreter ends.
        for thread in self._threads:
            thread.join(SILENCE)
        status.ended = True
        with suppress(dist.DistError, OSError):
            self.beat()

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
            self._exchanges += 1
            if text and not self._failed and not self._ended.is_set():
                _leave_because(text)

    def _watch_store(self) -> None:
        """Exit when the store no longer answers: this host is cut off, and `_exchange` blocks."""
        before, looks = self._exchanges, 0
        while not self._ended.wait(INTERVAL):
            looks = looks + 1 if self._exchanges == before else 0
            before = self._exchanges
            if looks * INTERVAL >= SILENCE and status.needs_others and not self._failed:
                _leave_because(NO_ANSWER)

    def _find_failure(self) -> Failure | None:
        """A posted failure, missing heartbeats of the next running rank, or a cycle of waits."""
        failure = self.board.failure()
        if failure is None:
            others = ((self.rank + step) % self.world for step in range(1, self.world))
            next_running = filter(self.board.is_running, others)
            failure = self.board.find_silent([*islice(next_running, 1)])
        return failure or self.board.find_wait_cycle(self.rank)


def _leave_because(reason: str) -> None:
    """Print why and end this process, whatever its other threads are waiting for."""

    def write() -> None:
        with suppress(Exception):
            sys.stdout.flush()
        with suppress(OSError):
            line = f"{status.who}: leaving, because {reason}\n"
            os.write(2, line.encode(errors="replace"))

    # In a thread with a time limit: nobody may read the pipe behind stderr.
    try:
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        writer.join(1.0)
    finally:
        os._exit(1)


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


@contextmanager
def collectives_end_soon() -> Iterator[None]:
    """Wrap the actions of a stage, in which the user's code may call a collective of all ranks.

    The other stages cannot come to it: they wait for this one. So it raises after SILENCE.
    """
    gloo: Any = distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    gloo = getattr(gloo, "wrapped_pg", gloo)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    before = gloo.options._timeout
    gloo._set_default_timeout(timedelta(seconds=SILENCE))
    try:
        yield
    finally:
        gloo._set_default_timeout(before)


def begin_step(step: int) -> None:
    """Set the step of this process; the first one is posted at once, since a step may end it."""
    is_first = status.step is None
    status.step, status.action = step, None
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
