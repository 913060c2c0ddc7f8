"""What a stage does with its links during a step: receives posted ahead, sends that nobody waits for."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.message import MessageMeta
from repro.gpipe.comm.transport import Link
from repro.gpipe.core.microbatch import Tree, unflatten


class Inbox:
    """The messages of one step from one neighbour.

    Args:
        link: where they come from.
        order: micro-batches in the order in which the neighbour sends them.
        metas: micro-batch -> what its message holds; may be filled while the step runs.
        learn_from: the wire and the stage from which each message's description comes first, to be
            put into `metas`; None if they are known.
        ahead: receives to keep posted; each one occupies memory.
    """

    def __init__(
        self,
        link: Link,
        order: Sequence[int],
        metas: dict[int, MessageMeta],
        learn_from: tuple[Wire, int] | None = None,
        ahead: int = 2,
    ) -> None:
        self.link = link
        self.metas = metas
        self._learn_from = learn_from
        self._ahead = ahead
        self._todo = deque(order)
        self._posted: deque[tuple[int, list[Callable[[], Tensor]]]] = deque()
        self._arrived: dict[int, list[Tensor]] = {}
        self.post()

    def post(self) -> None:
        """Post the next receives whose shapes are known."""
        while self._todo and len(self._posted) < self._ahead and self._todo[0] in self.metas:
            i = self._todo.popleft()
            self._posted.append((i, [self.link.irecv(m) for m in self.metas[i].tensors]))

    def take(self, i: int) -> list[Tensor]:
        """Wait for the message of micro-batch i."""
        while i not in self._arrived:
            if self._learn_from is not None and not self._posted:
                wire, neighbour = self._learn_from
                meta = wire.recv_object(neighbour)
                assert isinstance(meta, MessageMeta)
                self.metas[self._todo[0]] = meta
            self.post()
            j, arriving = self._posted.popleft()
            self._arrived[j] = [
                m.restored(wait()) for m, wait in zip(self.metas[j].tensors, arriving, strict=True)
            ]
            self.post()
        return self._arrived.pop(i)

    def take_tree(self, i: int) -> Tree:
        """The message as it was sent; members that require a gradient are leaves that do."""
        tensors = self.take(i)
        meta = self.metas[i]
        leaves = [
            t.requires_grad_(m.requires_grad) for t, m in zip(tensors, meta.tensors, strict=True)
        ]
        return unflatten(leaves, meta.skeleton)


class Outbox:
    """Finishes what is being sent, in order, in a thread of its own: the computing thread never waits for it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started when there is something to finish
        self._idle = True
        self._error: BaseException | None = None

    def send(self, link: Link, tensors: Sequence[Tensor]) -> None:
        """Start to send tensors in order; raises what an earlier send raised."""
        self._raise()
        for tensor in tensors:
            if (rest := link.isend(tensor)) is not None:
                self._put(rest)

    def flush(self) -> None:
        """Wait until everything is sent; raises what a send raised."""
        if self._idle:
            return
        done = threading.Event()
        self._put(done.set)
        done.wait()
        self._idle = True
        self._raise()

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _put(self, rest: Callable[[], Any]) -> None:
        self._idle = False
        self._queue.put(rest)
        if self._thread is None:
            self._thread = threading.Thread(target=self._finish, name="gpipe-outbox", daemon=True)
            self._thread.start()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _finish(self) -> None:
        while (rest := self._queue.get()) is not None:
            try:
                rest()
            except BaseException as error:
                self._error = self._error or error
            del rest  # and what it kept alive
