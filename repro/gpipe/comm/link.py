"""One direction between this rank and a neighbour, whatever carries its messages.

During a step receives are posted ahead, and sends are finished in the background.
"""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from repro.gpipe.comm.message import Form, Message
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import sending, waiting
from repro.gpipe.schedule.actions import Cell

_AHEAD = 2  # receives that are kept posted; each one occupies memory


class Link:
    """A link either sends or receives; both without blocking, in the order of the calls.

    A message brings its form along where that is not the form of the last message with the same
    key. Both ends remember those.
    """

    looks = False  # whether the receiving end has `has_arrived`

    def __init__(self, peer: int) -> None:
        self.peer = peer  # the rank in the world at the other end
        self._forms: dict[Hashable, Form] = {}
        self.sent = 0  # bytes of tensors so far
        # The most that the link may do; None: as fast as it can. One message is sent at a time, and
        # arrives `latency` later. And when all messages are sent at that speed, in seconds of
        # time.perf_counter, which the processes of a Linux host share.
        self.speed: LinkSpeed | None = None
        self.free = -math.inf

    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Start to send; returns the rest of the work, for a thread that may block, or None."""
        raise NotImplementedError

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Start to receive; call the result to wait for the message, on this rank's device."""
        raise NotImplementedError

    def has_arrived(self) -> bool:
        """Whether the next message is here, or an error that its receiver will raise."""
        raise NotImplementedError

    def flush(self) -> None:
        """Release the tensors that were sent; called when the rest of every send is done."""

    def close(self) -> None:
        """End the connection."""

    def _new_form(self, key: Hashable, form: Form) -> bytes:
        """The form as bytes if the receiver does not know it, else nothing; from now on it does."""
        known = self._forms.get(key)
        if known is form or known == form:
            return b""
        self._forms[key] = form
        return form.packed

    def _arrived_form(self, key: Hashable, packed: bytes) -> Form:
        """The inverse of `_new_form`."""
        if packed:
            self._forms[key] = Form.unpacked(packed)
        return self._forms[key]

    def _ready(self, nbytes: int) -> float:
        """When the receiver may have a message that is sent now; 0: at once."""
        if self.speed is None or not nbytes:
            return 0.0
        self.free = max(self.free, time.perf_counter()) + nbytes / self.speed.bytes_per_second
        return self.free + self.speed.latency


class Inbox:
    """The messages of one step from one neighbour.

    Args:
        link: the link that carries them.
        order: what needs the messages, in the order in which the neighbour sends them.
        evaluate: whether it is an evaluation; messages of another kind of step have other forms.
    """

    def __init__(self, link: Link, order: Sequence[Cell], *, evaluate: bool) -> None:
        self._link, self._evaluate = link, evaluate
        self._todo = deque(order)
        self._posted: deque[tuple[Cell, Callable[[], Message]]] = deque()
        self._post()

    def _post(self) -> None:
        while self._todo and len(self._posted) < _AHEAD:
            cell = self._todo.popleft()
            self._posted.append((cell, self._link.irecv((self._evaluate, cell))))

    def take(self, cell: Cell) -> Message:
        """Wait for the next message, which this rank needs for this micro-batch."""
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
        self._peer: int | None = None  # of the last send, until it is flushed
        self._error: BaseException | None = None

    def send(self, link: Link, message: Message, key: Hashable) -> None:
        """Start to send; raises the error of an earlier send that failed."""
        self._raise()
        link.sent += message.form.content
        finish = link.isend(message, key)
        if finish is not None:
            self._peer = link.peer
            self._put(finish)
        if link.speed is not None and not link.speed.overlap:
            wait_until(link.free)

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        if self._peer is None:
            return
        done = threading.Event()
        self._put(done.set)
        with waiting(self._peer):
            done.wait()
        self._peer = None
        self._raise()

    def close(self) -> None:
        """End the thread; a second call does nothing."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, finish: Callable[[], Any]) -> None:
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
                with sending():
                    finish()
            except BaseException as error:
                self._error = self._error or error
            del finish  # it may keep a tensor alive
