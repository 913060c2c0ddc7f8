"""One direction between this stage and a neighbour, whatever carries its messages."""

import math
import time
from collections.abc import Callable, Hashable
from typing import Any

from repro.gpipe.comm.message import Form, Message
from repro.gpipe.partition.layer_costs import LinkSpeed


class Link:
    """A link either sends or receives; both without blocking, in the order of the calls.

    A message brings its form along where that is not the form of the last message with the same
    key. Both ends remember those.
    """

    def __init__(self) -> None:
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
        """Start to receive; call the result to wait for the message, on this stage's device."""
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
