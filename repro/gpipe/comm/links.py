"""The links of one rank to its neighbours, and a measurement of their speed.

Activations go from rank r to r+1, gradients back. The kind of a link depends on where the two ranks
are:

    shared memory   tensors on the CPU, both ranks on one host: the sender makes the only copy
    gloo            tensors on the CPU, any two hosts
    NCCL            every rank has its own GPU: one communicator for each link, so that a receive
                    does not block a send
    host-staged     ranks that share a GPU: through pinned host memory and gloo, with the copies
                    on a CUDA stream of their own

With transport="shm" it is shared memory only, with "gloo" gloo only, staged for tensors of a GPU.
"""

import time

import torch
import torch.distributed as dist

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Message
from repro.gpipe.comm.transport import TAGS, Gloo, Nccl, Staged, nccl_pairs
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import LinkSpeed

TRANSPORTS = ("auto", "shm", "gloo")
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
        self.channel, self._device, self._transport = channel, device, transport
        self._ring = ring = ring and channel.ranks > 1  # the last rank is linked to the first, too
        # Sending a tensor of the CPU takes time of the processor that computes.
        self._overlap = throttle.overlap if throttle else device.type == "cuda"
        self.incoming: dict[str, Link] = {}
        self.outgoing: dict[str, Link] = {}
        self.closed = False
        self._hosts = channel.all_gather(shm.host())
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
                link = self._connect(neighbour, of, outgoing=outgoing)
                (self.outgoing if outgoing else self.incoming)[of] = link
                # NCCL makes a communicator at its first use, when both ends wait for each other.
                # One byte is sent now, so that this happens here and not inside a schedule.
                if outgoing:
                    link.send(self._zeros(1), "greeting")
                else:
                    link.expect(["greeting"])
                    link.receive("greeting")
                link.speed = throttle

    def _connect(self, neighbour: int, of: str, *, outgoing: bool) -> Link:
        """Make one direction; the neighbour makes its end at the same point of its own program."""
        channel, device, transport = self.channel, self._device, self._transport
        peer, tag = channel.world_rank(neighbour), TAGS[of]
        if device.type == "cuda" and transport != "gloo" and "nccl" in dist.get_backend_config():
            rank, world = channel.world_rank(channel.rank), dist.get_world_size()
            if self._ring and world % channel.ranks:
                raise ValueError(
                    f"stages={channel.ranks}: with several stages on each rank, NCCL needs all "
                    f"{world} processes in pipelines; start a multiple of them, or try "
                    "transport='gloo'"
                )
            pair = (rank, peer) if outgoing else (peer, rank)
            groups = nccl_pairs(world, channel.ranks if self._ring else 0)
            return Nccl(peer, tag, groups[*pair, tag], device)
        if device.type != "cpu":
            return Staged(peer, tag, device)
        same_host = self._hosts[neighbour] == self._hosts[channel.rank] != ""
        if transport == "shm" and not same_host:
            raise ValueError(
                f"transport='shm': ranks {channel.rank} and {neighbour} share no Linux host; try "
                "'auto'"
            )
        if transport == "gloo" or not same_host:
            return Gloo(peer, tag)
        if outgoing:
            return shm.Sender(channel.recv_object(neighbour), peer)
        receiver = shm.Receiver(peer)
        channel.send_object(receiver.address, neighbour)
        receiver.accept()
        return receiver

    def _zeros(self, size: int) -> Message:
        tensors = [torch.zeros(size, dtype=torch.uint8, device=self._device)]
        return Message.of(tensors, None)

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
        return LinkSpeed(latency=latency, bytes_per_second=1.0 / slope, overlap=self._overlap)
