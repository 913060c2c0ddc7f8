"""The links of one rank to its neighbours, and a measurement of their speed."""

import time
from collections.abc import Hashable

import torch

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import Form, Message
from repro.gpipe.comm.transport import ACTIVATION, GRADIENT, TRANSPORTS, connect
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.status import status

# Sizes in bytes of the messages that `speed` times, and how often it sends each.
_SMALL, _LARGE = 2**12, 2**20
_REPEATS = 4


class Links:
    """Up to four links: activations in from rank r-1 and out to r+1, gradients the other way.

    `before` and `after` are these ranks, or None.
    """

    def __init__(
        self,
        wire: ControlChannel,
        device: torch.device,
        transport: str,
        throttle: LinkSpeed | None = None,
        *,
        ring: bool = False,
    ) -> None:
        one_of("transport", transport, TRANSPORTS)
        device_types = {"shm": ["cpu"], "gloo": ["cpu", "cuda"]}.get(transport, [device.type])
        if device.type not in device_types:
            or_gpu = " or a GPU" if "cuda" in device_types else ""
            raise ValueError(
                f"transport='{transport}': is for stages on the CPU{or_gpu}, this one is on "
                f"{device}; try 'auto'"
            )
        if throttle is not None:
            _refuse_impossible(throttle, wire, device)
        self.wire, self._device, self._transport, self._throttle = wire, device, transport, throttle
        self._ring = ring and wire.stages > 1
        self.before = (wire.rank - 1) % wire.stages if self._ring or not wire.is_first else None
        self.after = (wire.rank + 1) % wire.stages if self._ring or not wire.is_last else None
        # Sending a tensor of the CPU takes time of the processor that computes.
        self._overlap = throttle.overlap if throttle else device.type == "cuda"
        # A send may wait for its receiver. In a ring that receiver may itself wait for a gradient
        # from here, so gradients must not queue behind activations.
        self._outbox = Outbox()
        self._gradients_outbox = Outbox() if self._ring else self._outbox
        self.closed = False
        self._all: list[Link] = []
        # Both ends of a link wait for each other. So the first rank begins with the next one, or
        # all ranks of a ring would wait for the rank before.
        for side in ("after", "before") if wire.is_first else ("before", "after"):
            if side == "before" and self.before is not None:
                self.activations_in = self._link(self.before, ACTIVATION, outgoing=False)
                self.gradients_out = self._link(self.before, GRADIENT, outgoing=True)
            elif side == "after" and self.after is not None:
                self.activations_out = self._link(self.after, ACTIVATION, outgoing=True)
                self.gradients_in = self._link(self.after, GRADIENT, outgoing=False)

    def _link(self, neighbour: int, tag: int, *, outgoing: bool) -> Link:
        how = {"outgoing": outgoing, "transport": self._transport, "ring": self._ring}
        link = connect(self.wire, neighbour, tag, self._device, **how)
        # NCCL makes a communicator at its first use, when both ends wait for each other. One byte
        # is sent now, so that this happens here and not inside a schedule.
        if outgoing:
            self._outbox.send(link, self._zeros(1), "greeting")
        else:
            link.irecv("greeting")()
        link.speed = self._throttle
        self._all.append(link)
        return link

    def _zeros(self, size: int) -> Message:
        tensors = [torch.zeros(size, dtype=torch.uint8, device=self._device)]
        return Message(tensors, Form.of(tensors, None))

    def send_activations(self, message: Message, key: Hashable) -> None:
        """Start to send to the next rank; raises the error of an earlier send."""
        self._outbox.send(self.activations_out, message, key)

    def send_gradients(self, message: Message, key: Hashable) -> None:
        """Start to send to the rank before; raises the error of an earlier send."""
        self._gradients_outbox.send(self.gradients_out, message, key)

    def sent_bytes(self) -> dict[str, int]:
        """Bytes of "activations" and "gradients" that were sent so far, where there is a link."""
        sent = {}
        if self.after is not None:
            sent["activations"] = self.activations_out.sent
        if self.before is not None:
            sent["gradients"] = self.gradients_out.sent
        return sent

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        status.flushing = True
        try:
            self._outbox.flush()
            self._gradients_outbox.flush()
        finally:
            status.flushing = False
        for link in self._all:
            link.flush()

    def close(self) -> None:
        """End the helper threads and the connections."""
        self.closed = True
        self._outbox.close()
        self._gradients_outbox.close()
        for link in self._all:
            link.close()

    def speed(self) -> LinkSpeed:
        """Speed of the link to rank r+1, from messages there and back; free on the last rank.

        Every rank calls it. The ranks take turns: each answers rank r-1, then asks rank r+1.
        """
        fastest: dict[int, float] = {_SMALL: float("inf"), _LARGE: float("inf")}
        sizes = [size for size in fastest for _ in range(_REPEATS)]
        if not self.wire.is_first:
            for size in sizes:
                self.send_gradients(self.activations_in.irecv(size)(), size)
        if not self.wire.is_last:
            for size in sizes:
                message, arriving = self._zeros(size), self.gradients_in.irecv(size)
                start = time.perf_counter()
                self.send_activations(message, size)
                arriving().tensors[0].cpu()
                fastest[size] = min(fastest[size], (time.perf_counter() - start) / 2)
        self.flush()
        if self.wire.is_last:
            return LinkSpeed(overlap=self._overlap)
        # A straight line through the two sizes: its slope is 1 / bandwidth, its start the latency.
        slope = max(fastest[_LARGE] - fastest[_SMALL], 1e-9) / (_LARGE - _SMALL)
        latency = max(0.0, fastest[_SMALL] - slope * _SMALL)
        return LinkSpeed(latency, 1.0 / slope, self._overlap)


def _refuse_impossible(throttle: object, wire: ControlChannel, device: torch.device) -> None:
    """Raise a ValueError on every stage if links cannot be throttled: see `throttle` above."""
    if not isinstance(throttle, LinkSpeed):
        raise ValueError(
            f"throttle={throttle!r}: must be a LinkSpeed or None; try LinkSpeed(latency=1e-3)"
        )
    # Ready times are of the clock that the processes of one Linux host share.
    gathered = wire.all_gather((device.type, shm.host() if shm.available() else ""))
    for stage, place in enumerate(gathered):
        if place[0] != "cpu" or (wire.stages > 1 and ("" in place or place != gathered[0])):
            raise ValueError(
                f"throttle={throttle}: is for stages on the CPU of one Linux host, and stage "
                f"{stage} is on {place[0]}, or on another host; leave it out, or try device='cpu'"
            )
