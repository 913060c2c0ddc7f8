"""The links of one rank to its neighbours, and a measurement of their speed."""

import time

import torch

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Form, Message
from repro.gpipe.comm.transport import TRANSPORTS, connect
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import LinkSpeed

# The link that carries what an F, B or I makes: of activations, or of gradients.
LINK_OF = {"F": "F", "B": "B", "I": "B"}
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
        self.incoming: dict[str, Link] = {}
        self.outgoing: dict[str, Link] = {}
        self.closed = False
        hosts = channel.all_gather(shm.host())
        sides = []  # another rank, and what goes there
        if ring or not channel.is_first:
            sides.append(((channel.rank - 1) % channel.ranks, "B"))
        if ring or not channel.is_last:
            sides.append(((channel.rank + 1) % channel.ranks, "F"))
        # Both ends of a link wait for each other. So the first rank begins with the next one, or
        # all ranks of a ring would wait for the rank before.
        for neighbour, goes in reversed(sides) if channel.is_first else sides:
            same_host = hosts[neighbour] == hosts[channel.rank] != ""
            for of in ("F", "B"):
                outgoing = of == goes
                link = connect(
                    channel,
                    neighbour,
                    of,
                    device,
                    outgoing=outgoing,
                    transport=transport,
                    same_host=same_host,
                    ring=ring,
                )
                (self.outgoing if outgoing else self.incoming)[of] = link
                # NCCL makes a communicator at its first use, when both ends wait for each other.
                # One byte is sent now, so that this happens here and not inside a schedule.
                if outgoing:
                    link.send(self._zeros(1), "greeting")
                else:
                    link.expect(["greeting"])
                    link.receive("greeting")
                link.speed = throttle

    def _zeros(self, size: int) -> Message:
        tensors = [torch.zeros(size, dtype=torch.uint8, device=self._device)]
        return Message(tensors, Form.of(tensors, None))

    def sent_bytes(self) -> dict[str, int]:
        """Bytes of "activations" and "gradients" that were sent so far, where there is a link."""
        names = {"F": "activations", "B": "gradients"}
        return {names[of]: self.outgoing[of].sent for of in names if of in self.outgoing}

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        for link in self.outgoing.values():
            link.flush()

    def close(self) -> None:
        """End the connections."""
        self.closed = True
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
                self.incoming["F"].expect([size])
                self.outgoing["B"].send(self.incoming["F"].receive(size), size)
        messages = {size: self._zeros(size) for size in fastest}
        if not self.channel.is_last:
            for size in sizes:
                self.incoming["B"].expect([size])
                start = time.perf_counter()
                self.outgoing["F"].send(messages[size], size)
                self.incoming["B"].receive(size).tensors[0].cpu()
                fastest[size] = min(fastest[size], (time.perf_counter() - start) / 2)
        self.flush()
        if self.channel.is_last:
            return LinkSpeed(overlap=self._overlap)
        # A straight line through the two sizes: its slope is 1 / bandwidth, its start the latency.
        slope = max(fastest[_LARGE] - fastest[_SMALL], 1e-9) / (_LARGE - _SMALL)
        latency = max(0.0, fastest[_SMALL] - slope * _SMALL)
        return LinkSpeed(latency, 1.0 / slope, self._overlap)
