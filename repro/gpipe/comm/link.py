"""One direction between this rank and a neighbour, whatever carries its messages."""

import math
import time
from collections.abc import Hashable, Sequence

from repro.gpipe.comm.message import Form, Message
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.clock import wait_until


class Link:
    """A link either sends or receives, in the order of the calls.

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
        self._free = -math.inf

    def send(self, message: Message, key: Hashable) -> None:
        """Start to send; the computing thread has nothing more to do for it."""
        raise NotImplementedError

    def expect(self, keys: Sequence[Hashable]) -> None:
        """Begin to receive: messages with these keys, no two alike, will come in this order."""

    def receive(self, key: Hashable) -> Message:
        """Wait for the next expected message, on this rank's device."""
        raise NotImplementedError

    def has_arrived(self) -> bool:
        """Whether the next message is here, or an error that its receiver will raise."""
        raise NotImplementedError

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""

    def close(self) -> None:
        """End the connection."""

    def _new_form(self, key: Hashable, message: Message) -> bytes:
        """The form as bytes if the receiver does not know it, else nothing; from now on it does."""
        known = self._forms.get(key)
        if known is not None and known.key == message.form.key:
            message.form = known  # what was computed of it serves again
            return b""
        self._forms[key] = message.form
        return message.form.packed

    def _arrived_form(self, key: Hashable, packed: bytes) -> Form:
        """The inverse of `_new_form`."""
        if packed:
            self._forms[key] = Form.unpacked(packed)
        return self._forms[key]

    def _pace(self, nbytes: int) -> float:
        """Count what is sent now. Returned is when the receiver may have it; 0: at once."""
        self.sent += nbytes
        if self.speed is None or not nbytes:
            return 0.0
        self._free = max(self._free, time.perf_counter()) + nbytes / self.speed.bytes_per_second
        if not self.speed.overlap:
            wait_until(self._free)
        return self._free + self.speed.latency
