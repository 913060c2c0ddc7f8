"""A rank's use of its links during a step: receives posted ahead, sends in the background."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Message
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.schedule.actions import Cell


class Inbox:
    """The messages of one step from one neighbour.

    Args:
        link: the link that carries them.
        order: what needs the messages, in the order in which the neighbour sends them.
        kind: of the step; steps of one kind are likely to have messages of the same forms.
        ahead: number of receives to keep posted; each one occupies memory.
    """

    def __init__(
        self, link: Link, order: Sequence[Cell], kind: Hashable = None, ahead: int = 2
    ) -> None:
        self._link, self._kind, self._ahead = link, kind, ahead
        self._todo = deque(order)
        self._posted: deque[tuple[Cell, Callable[[], Message]]] = deque()
        self._post()

    def _post(self) -> None:
        while self._todo and len(self._posted) < self._ahead:
            cell = self._todo.popleft()
            self._posted.append((cell, self._link.irecv((self._kind, cell))))

    def take(self, cell: Cell) -> Message:
        """Wait for the next message, which this stage needs for this micro-batch."""
        next_cell, arriving = self._posted.popleft()
        assert next_cell == cell
        message = arriving()
        self._post()
        return message


class Outbox:
    """Finishes sends in order, in its own thread, so that the computing thread never waits."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started when there is something to finish
        self._idle = True
        self._error: BaseException | None = None

    def send(self, link: Link, message: Message, key: Hashable) -> None:
        """Start to send; raises the error of an earlier send that failed."""
        self._raise()
        link.sent += message.form.content
        finish = link.isend(message, key)
        if finish is not None:
            self._put(finish)
        if link.speed is not None and not link.speed.overlap:
            wait_until(link.free)

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
        """End the thread; a second call does nothing."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

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
