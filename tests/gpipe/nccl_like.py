"""A transport on the CPU that blocks where NCCL blocks, and so deadlocks where NCCL would.

As torch's NCCL does it: a communicator executes what is posted to it strictly in program order, one
operation at a time, beside the computing thread; a send and a receive end only when the other end
has come to the matching one; the first post of a communicator makes the computing thread wait for
the neighbour's first.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import links
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.transport import TAGS, Nccl
from repro.gpipe.errors import EveryRankError

_HELLO, _READY, _DATA, _HEADS = 100, 200, 300, 400  # gloo's tags, to which a direction's is added
_LIMIT = timedelta(seconds=30)  # of an operation


class Deadlock(RuntimeError, EveryRankError):
    """An operation waited longer than it may."""


class Communicator:
    """One end of a channel between two processes, for one direction."""

    def __init__(self, peer: int, tag: int) -> None:
        self.peer, self.tag = peer, tag
        self._greeted = False
        self._pool = ThreadPoolExecutor(1)

    def post(self, kind: str, data: Tensor) -> Future:
        """Queue an operation."""
        if not self._greeted:
            greeting = dist.isend(torch.zeros(1), self.peer, tag=_HELLO + self.tag)
            self._receive(torch.zeros(1), _HELLO)
            _finish(greeting)
            self._greeted = True
        return self._pool.submit(self._execute, kind, data)

    def close(self) -> None:
        """Stop after what was posted; a second call does nothing."""
        self._pool.shutdown()

    def _execute(self, kind: str, data: Tensor) -> None:
        try:
            if kind == "send":
                self._receive(torch.zeros(1), _READY)
                self._send(data, _DATA)
            else:
                self._send(torch.zeros(1), _READY)
                self._receive(data, _DATA)
        except RuntimeError as error:  # what follows fails in the same way
            raise Deadlock(f"{kind} to or from rank {self.peer}: {error}") from None

    def _send(self, data: Tensor, tag: int) -> None:
        _finish(dist.isend(data, self.peer, tag=tag + self.tag))

    def _receive(self, data: Tensor, tag: int) -> None:
        _finish(dist.irecv(data, self.peer, tag=tag + self.tag))


def _finish(work: dist.Work | None) -> None:
    assert work is not None
    work.wait(_LIMIT)


class Operation:
    """What torch would give as a Work."""

    def __init__(self, done: Future) -> None:
        self.is_completed, self.wait = done.done, done.result


class NcclLike(Nccl):
    """One direction over such a communicator."""

    def __init__(self, peer: int, tag: int) -> None:
        self.communicator = Communicator(peer, tag)
        super().__init__(peer, _HEADS + tag, cast("Any", None), torch.device("cpu"))

    def _queue(self, operation: Any, tensor: Tensor) -> Any:
        kind = "send" if operation is dist.isend else "receive"
        return Operation(self.communicator.post(kind, tensor))

    def close(self) -> None:
        self.communicator.close()


def connect(
    wire: ControlChannel, neighbour: int, of: str, device: torch.device, **_: object
) -> Link:
    return NcclLike(wire.world_rank(neighbour), TAGS[of])


@contextmanager
def over(transport: str) -> Iterator[str]:
    """The argument of Pipeline; what takes the place of `links.connect` if it is not ours."""
    if transport != "nccl-like":
        yield transport
        return
    with mock.patch.object(links, "connect", connect):
        yield "auto"
