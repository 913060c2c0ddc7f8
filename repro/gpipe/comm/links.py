"""The links of one rank to its neighbours, and a measurement of their speed."""

import time
from collections.abc import Hashable

import torch

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.link import Link, Outbox
from repro.gpipe.comm.message import Form, Message
from repro.gpipe.comm.transport import TRANSPORTS, connect
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import LinkSpeed

# Sizes in bytes of the messages that `speed` times, and how often it sends each.
_SMALL, _LARGE = 2**12, 2**20
_REPEATS = 4


class Links:
    """Up to four links: activations in from rank r-1 and out to r+1, gradients the other way.

    `incoming` and `outgoing` have those that there are, under "F" for activations and "B" for
    gradients.
    """

    def __init__(
        self,
        channel: ControlChannel,
        device: torch.device,
        transport: str,
        throttle: LinkSpeed | None = None,
        *,
        ring: bool = False,
    ) -> None:
        one_of("transport", transport, TRANSPORTS)
        if transport == "shm" and device.type != "cpu":
            raise ValueError(
                f"transport='shm': is for ranks on the CPU, this one is on {device}; try 'auto'"
            )
        if throttle is not None and device.type != "cpu":
            raise ValueError(
                f"throttle={throttle}: is for ranks on the CPU, this one is on {device}; leave it "
                "out, or try device='cpu'"
            )
        self.channel, self._device = channel, device
        ring = ring and channel.ranks > 1
        # Sending a tensor of the CPU takes time of the processor that computes.
        self._overlap = throttle.overlap if throttle else device.type == "cuda"
        # A send may wait for its receiver. In a ring that receiver may itself wait for a gradient
        # from here, so gradients must not queue behind activations.
        outbox = Outbox()
        self._outboxes = {"F": outbox, "B": Outbox() if ring else outbox}
        self.incoming: dict[str, Link] = {}
        self.outgoing: dict[str, Link] = {}
        self.closed = False
        sides = []  # another rank, and what goes there
        if ring or not channel.is_first:
            sides.append(((channel.rank - 1) % channel.ranks, "B"))
        if ring or not channel.is_last:
            sides.append(((channel.rank + 1) % channel.ranks, "F"))
        # Both ends of a link wait for each other. So the first rank begins with the next one, or
        # all ranks of a ring would wait for the rank before.
        for neighbour, goes in reversed(sides) if channel.is_first else sides:
            for of in ("F", "B"):
                outgoing = of == goes
                link = connect(
                    channel,
                    neighbour,
                    of,
                    device,
                    outgoing=outgoing,
                    transport=transport,
                    ring=ring,
                )
                (self.outgoing if outgoing else self.incoming)[of] = link
                # NCCL makes a communicator at its first use, when both ends wait for each other.
                # One byte is sent now, so that this happens here and not inside a schedule.
                if outgoing:
                    outbox.send(link, self._zeros(1), "greeting")
                else:
                    link.irecv("greeting")()
                link.speed = throttle

    def _zeros(self, size: int) -> Message:
        tensors = [torch.zeros(size, dtype=torch.uint8, device=self._device)]
        return Message(tensors, Form.of(tensors, None))

    def send(self, of: str, message: Message, key: Hashable) -> None:
        """Start to send to the next rank, gradients to the one before.

        Raises the error of an earlier send.
        """
        self._outboxes[of].send(self.outgoing[of], message, key)

    def sent_bytes(self) -> dict[str, int]:
        """Bytes of "activations" and "gradients" that were sent so far, where there is a link."""
        names = {"F": "activations", "B": "gradients"}
        return {names[of]: self.outgoing[of].sent for of in names if of in self.outgoing}

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        for outbox in self._outboxes.values():
            outbox.flush()
        for link in self.outgoing.values():
            link.flush()

    def close(self) -> None:
        """End the helper threads and the connections."""
        self.closed = True
        for outbox in self._outboxes.values():
            outbox.close()
        for link in [*self.outgoing.values(), *self.incoming.values()]:
            link.close()

    def speed(self) -> LinkSpeed:
        """Speed of the link to rank r+1, from messages there and back; free on the last rank.

        Every rank calls it. The ranks take turns: each answers rank r-1, then asks rank r+1.
        """
        fastest: dict[int, float] = {_SMALL: float("inf"), _LARGE: float("inf")}
        sizes = [size for size in fastest for _ in range(_REPEATS)]
        if not self.channel.is_first:
            for size in sizes:
                self.send("B", self.incoming["F"].irecv(size)(), size)
        if not self.channel.is_last:
            for size in sizes:
                message, arriving = self._zeros(size), self.incoming["B"].irecv(size)
                start = time.perf_counter()
                self.send("F", message, size)
                arriving().tensors[0].cpu()
                fastest[size] = min(fastest[size], (time.perf_counter() - start) / 2)
        self.flush()
        if self.channel.is_last:
            return LinkSpeed(overlap=self._overlap)
        # A straight line through the two sizes: its slope is 1 / bandwidth, its start the latency.
        slope = max(fastest[_LARGE] - fastest[_SMALL], 1e-9) / (_LARGE - _SMALL)
        latency = max(0.0, fastest[_SMALL] - slope * _SMALL)
        return LinkSpeed(latency, 1.0 / slope, self._overlap)
