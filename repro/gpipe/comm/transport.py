"""Links between neighbouring stages: activations go from stage j to j+1, gradients back.

A link is one direction. It starts sends and receives without blocking, in the order of its calls.
Its kind depends on where the two stages are:

    shared memory   tensors on the CPU, both stages on one host: the sender makes the only copy
    gloo            tensors on the CPU, any two hosts
    NCCL            every rank has its own GPU: one communicator for each link, so that a receive
                    that is posted ahead does not block a send
    host-staged     stages that share a GPU: through pinned host memory and gloo, with the copies
                    on a CUDA stream of their own
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import Wire, wait
from repro.gpipe.comm.message import TensorMeta, dense, elements
from repro.gpipe.runtime.status import reaching, sending, waiting

ACTIVATION, GRADIENT = 1, 2  # gloo's tags; control_channel.CONTROL is another
STAMPS = 3  # added to one of them: the tag of the stamps of a throttled link
TRANSPORTS = ("auto", "shm", "gloo")
TIMEOUT = timedelta(hours=1)  # of one message; a neighbour that dies is noticed at once
# Up to so many bytes the computing thread copies itself: to wake another thread takes as long.
_INLINE = 2**20


class Link(ABC):
    """One direction between this stage and a neighbour: a link either sends or receives."""

    @abstractmethod
    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Start to send; returns the rest of the work, for a thread that may block, or None."""

    @abstractmethod
    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Start to receive; call the result to wait for the tensor, on this stage's device."""

    def flush(self) -> None:  # noqa: B027
        """Release the tensors that were sent; called when the rest of every send is done."""

    def close(self) -> None:  # noqa: B027
        """End the connection."""


class Gloo(Link):
    """Tensors in host memory over the default process group; each direction has its own tag."""

    def __init__(self, peer: int, tag: int, *, pinned: bool = False) -> None:
        self.peer, self.tag, self.pinned = peer, tag, pinned

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Hand the tensor over to gloo's own threads."""
        source = elements(dense(tensor.detach()))
        with reaching(self.peer):
            work = dist.isend(source, self.peer, tag=self.tag)
        return partial(self._wait_for_send, work, source)

    def _wait_for_send(self, work: dist.Work | None, source: Tensor) -> None:
        """Wait until the message is sent; keeps `source` alive until then."""
        assert work is not None
        with sending(self.peer, source.nbytes):
            work.wait()

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Allocate memory and post the receive."""
        room = meta.room(torch.device("cpu"), pinned=self.pinned)
        with reaching(self.peer):
            work = dist.irecv(elements(room), self.peer, tag=self.tag)
        return partial(wait, work, room, self.peer)


class Shared(Link):
    """Tensors in shared memory; another thread than the computing one copies large tensors."""

    def __init__(self, end: shm.Sender | shm.Receiver, peer: int) -> None:
        self._end: Any = end
        self._peer = peer
        # Sends left to the other thread, and sends that it has done. Each counter is written by one
        # thread only.
        self._left, self._done = 0, 0

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Copy and notify, or leave both to another thread."""
        if not tensor.numel():
            return None
        source = dense(tensor.detach())
        # A send must not overtake an earlier one that is left to the other thread.
        if self._left > self._done or source.nbytes > _INLINE:
            self._left += 1
            return partial(self._send_later, source)
        note = self._end.put(source)
        if not self._notify(note, wait=False):
            self._left += 1
            return partial(self._send_later, source, note)
        return None

    def _notify(self, note: tuple[bytes, list[int]], *, wait: bool) -> bool:
        with sending(self._peer, 0):
            return self._end.notify(*note, wait=wait)

    def _send_later(self, source: Tensor, note: tuple[bytes, list[int]] | None = None) -> None:
        self._notify(note or self._end.put(source), wait=True)
        self._done += 1

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Nothing is posted: the next tensor already lies in memory when it is waited for."""
        if not meta.nbytes:
            return partial(meta.room, torch.device("cpu"))
        return partial(self._receive, meta)

    def _receive(self, meta: TensorMeta) -> Tensor:
        with waiting(self._peer, 0), reaching(self._peer):
            return self._end.receive(meta)

    def close(self) -> None:
        """End the connection."""
        self._end.close()


class Nccl(Link):
    """Tensors between GPUs; NCCL's kernels run on the communicator's own CUDA stream.

    To wait for a send would make the computing stream wait. So tensors that are sent are kept until
    their send has completed.
    """

    def __init__(self, peer: int, group: dist.ProcessGroup, device: torch.device) -> None:
        self.peer, self.group, self.device = peer, group, device
        self._unfinished: list[tuple[dist.Work, Tensor]] = []

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Queue the send behind the kernels that compute the tensor."""
        source = elements(dense(tensor.detach()))
        work = dist.isend(source, self.peer, group=self.group)
        assert work is not None
        self._unfinished = [send for send in self._unfinished if not send[0].is_completed()]
        self._unfinished.append((work, source))
        return None

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Queue the receive; the computing stream will wait for it."""
        room = meta.room(self.device)
        work = dist.irecv(elements(room), self.peer, group=self.group)
        return partial(wait, work, room, self.peer)

    def flush(self) -> None:
        """Make the computing stream wait for all sends, as a later step would have to anyway."""
        for work, _ in self._unfinished:
            work.wait()
        self._unfinished.clear()


class Staged(Link):
    """Tensors of a GPU over another link; copies to pinned host memory run on their own stream."""

    def __init__(self, link: Link, device: torch.device) -> None:
        self.link, self.device = link, device
        self._stream = torch.cuda.Stream(device)

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Start the copy to the host; the rest is to wait for it and to send."""
        source = dense(tensor.detach())
        staged = torch.empty_strided(
            source.shape, source.stride(), dtype=source.dtype, pin_memory=True
        )
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            staged.copy_(source, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        source.record_stream(self._stream)
        return partial(self._send, copied, staged)

    def _send(self, copied: torch.cuda.Event, staged: Tensor) -> None:
        copied.synchronize()
        finish = self.link.isend(staged)
        if finish is not None:
            finish()

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Receive on the host, then copy to the device."""
        return partial(self._arrive, self.link.irecv(meta))

    def _arrive(self, arriving: Callable[[], Tensor]) -> Tensor:
        staged = arriving()
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            tensor = staged.to(self.device, non_blocking=True)
        computing.wait_stream(self._stream)
        tensor.record_stream(computing)
        return tensor

    def close(self) -> None:
        """End the connection."""
        self.link.close()


@cache
def nccl_pairs(world: int, ring: int = 0) -> dict[tuple[int, int, int], dist.ProcessGroup]:
    """One communicator for each link; all ranks must call this at the same point.

    Args:
        world: number of ranks.
        ring: how many ranks form a ring, whose last one is linked to its first; 0 without rings.

    Returns:
        (from rank, to rank, tag) -> communicator. In a ring of two ranks activations and gradients
            go the same way, and NCCL has no tags of its own.
    """
    pairs = [(rank, rank + 1) for rank in range(world - 1)]
    if ring:
        pairs += [(first + ring - 1, first) for first in range(0, world - ring + 1, ring)]
    links: list[tuple[int, int, int]] = []
    for rank, after in pairs:
        links += [(rank, after, ACTIVATION), (after, rank, GRADIENT)]
    groups = [
        dist.new_group(sorted((rank, other)), backend="nccl", timeout=TIMEOUT)
        for rank, other, _ in links
    ]
    return dict(zip(links, groups, strict=True))  # pyright: ignore[reportReturnType]


def connect(
    wire: Wire,
    neighbour: int,
    tag: int,
    device: torch.device,
    *,
    outgoing: bool,
    transport: str,
    ring: bool = False,
) -> Link:
    """Make one direction; the neighbour must make its end at the same point of its own program.

    Args:
        wire: the control channel of this rank.
        neighbour: the other rank, r-1 or r+1.
        tag: ACTIVATION or GRADIENT, plus STAMPS for stamps.
        device: where this rank keeps its tensors.
        outgoing: whether this rank sends.
        ring: whether the last rank is also linked to the first.
        transport: "auto" takes the fastest kind that is possible; "shm" takes shared memory only;
            "gloo" takes gloo only, with tensors of a GPU copied through pinned host memory.

    Raises:
        ValueError: one line, at both ends, if the transport is "shm" and they cannot share memory.
    """
    peer = wire.world_rank(neighbour)
    if device.type == "cuda" and transport != "gloo" and "nccl" in dist.get_backend_config():
        rank, world = wire.world_rank(wire.rank), dist.get_world_size()
        if ring and world % wire.stages:
            raise ValueError(
                f"stages={wire.stages}: with several stages on each rank, NCCL needs all {world} "
                "processes in pipelines; start a multiple of the stages, or try transport='gloo'"
            )
        pair = (rank, peer) if outgoing else (peer, rank)
        groups = nccl_pairs(world, wire.stages if ring else 0)
        return Nccl(peer, groups[*pair, tag], device)
    if device.type != "cpu":
        return Staged(Gloo(peer, tag, pinned=True), device)
    if transport != "gloo":
        end = _shared_sender(wire, neighbour) if outgoing else _shared_receiver(wire, neighbour)
        if end is not None:
            return Shared(end, peer)
    if transport == "shm":
        raise ValueError(
            f"transport='shm': stages {wire.rank} and {neighbour} share no Linux host; try 'auto'"
        )
    return Gloo(peer, tag)


def _shared_receiver(wire: Wire, neighbour: int) -> shm.Receiver | None:
    """Offer the neighbour shared memory; None if this host has none or the neighbour cannot."""
    receiver = shm.Receiver() if shm.available() else None
    wire.send_object((shm.host(), receiver.address) if receiver else None, neighbour)
    is_connected = wire.recv_object(neighbour)
    if receiver is None:
        return None
    if not is_connected:
        receiver.close()
        return None
    receiver.accept()
    return receiver


def _shared_sender(wire: Wire, neighbour: int) -> shm.Sender | None:
    """Connect to the shared memory that the neighbour offers; None where that is not possible."""
    offer = wire.recv_object(neighbour)
    sender = None
    if offer and shm.available() and offer[0] == shm.host():
        # On the same host the address may still be out of reach, in another namespace.
        with suppress(OSError):
            sender = shm.Sender(offer[1])
    wire.send_object(sender is not None, neighbour)
    return sender
