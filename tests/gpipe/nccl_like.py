"""A transport on the CPU that blocks where NCCL blocks, and so deadlocks where NCCL would.

As torch's NCCL does it: a communicator executes what is posted to it strictly in program order, one
operation at a time, beside the computing thread; a send and a receive end only when the other end
has come to the matching one; the first post of a communicator makes the computing thread wait for
the neighbour's first.
"""

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import links
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.transport import Link, Nccl
from repro.gpipe.errors import EveryRankError

_HELLO, _READY, _DATA, _HEADS = 100, 200, 300, 400  # gloo's tags, to which a number is added
_BOTH = 3  # the number of one that serves both directions; otherwise a direction's own tag


class Deadlock(RuntimeError, EveryRankError):
    """An operation waited longer than it may."""


class Communicator:
    """One end of a channel between two processes.

    Attributes:
        posted: every operation in program order: whether it sends, and its bytes.
        head: the operation that the end is at, "send" or "receive", or None.
    """

    def __init__(self, peer: int, number: int, seconds: float) -> None:
        self.peer, self.number = peer, number
        self.posted: list[tuple[str, int]] = []
        self.head: str | None = None
        self._limit = timedelta(seconds=seconds)
        self._queue: queue.SimpleQueue[tuple[str, Tensor, Future] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._execute, daemon=True)
        self._thread.start()

    def post(self, kind: str, data: Tensor) -> Future:
        """Queue an operation; the result of its future comes when it is done."""
        if not self.posted:
            greeting = dist.isend(torch.zeros(1), self.peer, tag=_HELLO + self.number)
            self._receive(torch.zeros(1), _HELLO)
            _finish(greeting, self._limit)
        self.posted.append((kind, data.numel()))
        done: Future = Future()
        self._queue.put((kind, data, done))
        return done

    def close(self) -> None:
        """Stop after what was posted; a second call does nothing."""
        self._queue.put(None)
        self._thread.join()

    def _execute(self) -> None:
        while (job := self._queue.get()) is not None:
            kind, data, done = job
            if self.head is None:
                self.head = kind
            try:
                self._run(kind, data)
                self.head = None
                done.set_result(None)
            except (
                RuntimeError
            ) as error:  # the head stays for the test to see; what follows fails in the same way
                done.set_exception(Deadlock(f"{self.head} to or from rank {self.peer}: {error}"))

    def _run(self, kind: str, data: Tensor) -> None:
        if kind == "send":
            self._receive(torch.zeros(1), _READY)
            self._send(data, _DATA)
        else:
            self._send(torch.zeros(1), _READY)
            self._receive(data, _DATA)

    def _send(self, data: Tensor, tag: int) -> None:
        _finish(dist.isend(data, self.peer, tag=tag + self.number), self._limit)

    def _receive(self, data: Tensor, tag: int) -> None:
        _finish(dist.irecv(data, self.peer, tag=tag + self.number), self._limit)


def _finish(work: dist.Work | None, limit: timedelta) -> None:
    assert work is not None
    work.wait(limit)


class Operation:
    """What torch would give as a Work."""

    def __init__(self, done: Future) -> None:
        self._done = done
        self.is_completed, self.wait = done.done, done.result


class NcclLike(Nccl):
    """One direction over such a communicator."""

    def __init__(self, communicator: Communicator, tag: int) -> None:
        self.communicator = communicator
        super().__init__(communicator.peer, _HEADS + tag, cast("Any", None), torch.device("cpu"))

    def _start(self, operation: Any, tensor: Tensor) -> Any:
        kind = "send" if operation is dist.isend else "receive"
        return Operation(self.communicator.post(kind, tensor))

    def close(self) -> None:
        self.communicator.close()


class Connector:
    """Takes the place of `links.connect`.

    Args:
        single: one communicator for both directions between neighbours, instead of one for each.
        seconds: that an operation may take.

    Attributes:
        made: (world rank of the peer, number) -> communicator.
    """

    def __init__(self, *, single: bool = False, seconds: float = 30.0) -> None:
        self.single, self.seconds = single, seconds
        self.made: dict[tuple[int, int], Communicator] = {}

    def __call__(
        self, wire: ControlChannel, neighbour: int, tag: int, device: torch.device, **_: object
    ) -> Link:
        key = wire.world_rank(neighbour), _BOTH if self.single else tag
        if key not in self.made:
            self.made[key] = Communicator(*key, self.seconds)
        return NcclLike(self.made[key], tag)


@contextmanager
def over(transport: str, *, seconds: float = 30.0) -> Iterator[tuple[str, Connector | None]]:
    """The argument of Pipeline, and what takes the place of `links.connect` if it is not ours."""
    if not transport.startswith("nccl-like"):
        yield transport, None
        return
    connector = Connector(single=transport.endswith("single"), seconds=seconds)
    with mock.patch.object(links, "connect", connector):
        yield "auto", connector
