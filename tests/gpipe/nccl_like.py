"""A transport on the CPU that blocks where NCCL blocks, and so deadlocks where NCCL would.

As torch's NCCL does it: a communicator executes what is posted to it strictly in program order, one
operation at a time, beside the computing thread; a send and a receive end only when the other end
has come to the matching one; the first post of a communicator makes the computing thread wait for
the neighbour's first.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm.control_channel import TIMEOUT
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.transport import TAGS, Nccl

_HEADS, _HELLO, _READY, _DATA = 100, 200, 300, 400  # added to gloo's tag of a direction
_NO_GROUP: Any = None


class NcclLike(Nccl):
    """One direction between two processes, with a communicator of its own."""

    def __init__(self, peer: int, tag: int) -> None:
        super().__init__(peer, _HEADS + tag, _NO_GROUP, torch.device("cpu"))
        self._greeted = False
        self._communicator = ThreadPoolExecutor(1)

    def _queue(self, operation: Any, tensor: Tensor) -> Any:
        if not self._greeted:
            sent = dist.isend(torch.zeros(1), self.peer, tag=_HELLO + self.tag)
            self._finish(dist.irecv, torch.zeros(1), _HELLO)
            assert sent is not None
            sent.wait(TIMEOUT)
            self._greeted = True
        done = self._communicator.submit(self._execute, operation, tensor)
        # As torch's Work.
        return SimpleNamespace(is_completed=done.done, wait=lambda *_: done.result())

    def _execute(self, operation: Any, tensor: Tensor) -> None:
        readiness = dist.irecv if operation is dist.isend else dist.isend
        self._finish(readiness, torch.zeros(1), _READY)
        self._finish(operation, tensor, _DATA)

    def _finish(self, operation: Any, tensor: Tensor, tag: int) -> None:
        operation(tensor, self.peer, tag=tag + self.tag).wait(TIMEOUT)

    def close(self) -> None:
        self._communicator.shutdown()


def connect(links: Links, neighbour: int, of: str, *, outgoing: bool) -> Link:
    return NcclLike(links.channel.world_rank(neighbour), TAGS[of])


@contextmanager
def over(transport: str) -> Iterator[str]:
    """The argument of Pipeline; what takes the place of `Links._connect` if it is not ours."""
    if transport != "nccl-like":
        yield transport
        return
    with mock.patch.object(Links, "_connect", connect):
        yield "auto"
