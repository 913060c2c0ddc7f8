"""A rank's use of its links during a step: receives posted ahead, sends in the background."""

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.message import MessageMeta
from repro.gpipe.comm.transport import Link
from repro.gpipe.core.microbatch import Tree, unflatten
from repro.gpipe.schedule.actions import Cell


class Inbox:
    """The messages of one step from one neighbour.

    Args:
        link: the link that carries them.
        order: what needs the messages, in the order in which the neighbour sends them.
        metas: description of the message for each of these; may be filled while the step runs.
        learn_from: control channel and rank that send each description before its message, which
            fills `metas`; None if the descriptions are known.
        ahead: number of receives to keep posted; each one occupies memory.
    """

    def __init__(
        self,
        link: Link,
        order: Sequence[Cell],
        metas: dict[Cell, MessageMeta],
        learn_from: tuple[Wire, int] | None = None,
        ahead: int = 2,
    ) -> None:
        self.link = link
        self.metas = metas
        self._learn_from = learn_from
        self._ahead = ahead
        self._todo = deque(order)
        self._posted: deque[tuple[Cell, list[Callable[[], Tensor]]]] = deque()
        self._arrived: dict[Cell, list[Tensor]] = {}
        self.post()

    def post(self) -> None:
        """Post the next receives whose shapes are known."""
        while self._todo and len(self._posted) < self._ahead and self._todo[0] in self.metas:
            cell = self._todo.popleft()
            self._posted.append((cell, [self.link.irecv(m) for m in self.metas[cell].tensors]))

    def take(self, cell: Cell) -> list[Tensor]:
        """Wait for the message that this stage needs for this micro-batch."""
        while cell not in self._arrived:
            if self._learn_from is not None and not self._posted:
                wire, neighbour = self._learn_from
                meta = wire.recv_object(neighbour)
                assert isinstance(meta, MessageMeta)
                self.metas[self._todo[0]] = meta
            self.post()
            next_cell, arriving = self._posted.popleft()
            metas = self.metas[next_cell].tensors
            self._arrived[next_cell] = [
                meta.restored(wait()) for meta, wait in zip(metas, arriving, strict=True)
            ]
            self.post()
        return self._arrived.pop(cell)

    def take_tree(self, cell: Cell) -> Tree:
        """Wait for the message, as a tree whose tensors are autograd leaves."""
        return as_leaves(self.take(cell), self.metas[cell])


def as_leaves(tensors: Sequence[Tensor], meta: MessageMeta) -> Tree:
    """The tensors of a message in its structure, as autograd leaves."""
    leaves = [
        tensor.requires_grad_(described.requires_grad)
        for tensor, described in zip(tensors, meta.tensors, strict=True)
    ]
    return unflatten(leaves, meta.skeleton)


class Outbox:
    """Finishes sends in order, in its own thread, so that the computing thread never waits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started when there is something to finish
        self._idle = True
        self._error: BaseException | None = None
        self.sent: Counter[Link] = Counter()  # bytes over each link so far

    def send(self, link: Link, tensors: Sequence[Tensor]) -> None:
        """Start to send tensors in order; raises the error of an earlier send that failed."""
        self._raise()
        for tensor in tensors:
            self.sent[link] += tensor.nbytes
            finish = link.isend(tensor)
            if finish is not None:
                self._put(finish)

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
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

    def _put(self, finish: Callable[[], Any]) -> None:
        self._idle = False
        self._queue.put(finish)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._finish_all, name="gpipe-outbox", daemon=True
            )
            self._thread.start()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _finish_all(self) -> None:
        """Finish sends until `close`; keep the first error for the computing thread."""
        while (finish := self._queue.get()) is not None:
            try:
                finish()
            except BaseException as error:
                self._error = self._error or error
            del finish  # it may keep a tensor alive
