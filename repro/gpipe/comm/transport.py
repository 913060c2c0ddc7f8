"""One direction between neighbouring stages: activations go from stage j to j+1, gradients back.

A link starts to send and to receive without blocking, in the order of its calls. Which kind it is
depends on where the two stages are:

    shared memory   two processes of one host, tensors on the CPU: the sender's copy is the only one
    gloo            tensors on the CPU, any two hosts NCCL            every stage has a GPU of its
    own: one communicator for each neighbour and direction, so that no
                    receive that is posted ahead stands in the way of a send
    host-staged     stages that share a GPU: through pinned host memory and gloo, copies on a stream
    of their own
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
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

ACTIVATION, GRADIENT = 1, 2  # gloo's tags; see also wire.CONTROL
STAMPS = 3  # to be added to one of them: of what goes ahead of throttled messages
TRANSPORTS = ("auto", "shm", "gloo")
TIMEOUT = timedelta(hours=1)  # of one message; a neighbour that dies is noticed at once
# bytes up to which the compute thread copies itself: waking another one would take as long
_INLINE = 2**20


class Link(ABC):
    """One direction between this stage and a neighbour; it is used to send or to receive, never both."""

    @abstractmethod
    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Start to send; what is left to be done, by another thread, which may have to wait for it."""

    @abstractmethod
    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Start to receive; call the result to wait for the tensor, on this stage's device."""

    def flush(self) -> None:  # noqa: B027
        """Let go of what was sent; called after everything that `isend` had left to do."""

    def close(self) -> None:  # noqa: B027
        """End the connection."""


class Gloo(Link):
    """Tensors in host memory over the default process group; `tag` tells the two directions apart."""

    def __init__(self, peer: int, tag: int, *, pinned: bool = False) -> None:
        self.peer, self.tag, self.pinned = peer, tag, pinned

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Hand over to gloo's own threads."""
        source = elements(dense(tensor.detach()))
        with reaching(self.peer):
            return partial(self._sent, dist.isend(source, self.peer, tag=self.tag), source)

    def _sent(self, work: dist.Work | None, source: Tensor) -> None:
        """Wait until the message is sent, in the thread that sends; `source` is kept until then."""
        assert work is not None
        with sending(self.peer, source.nbytes):
            work.wait()

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Make room and post."""
        room = meta.room(torch.device("cpu"), pinned=self.pinned)
        with reaching(self.peer):
            return partial(
                wait, dist.irecv(elements(room), self.peer, tag=self.tag), room, self.peer
            )


class Shared(Link):
    """Tensors in memory that both processes see; large ones are copied by another thread than the computing one."""

    def __init__(self, end: shm.Sender | shm.Receiver, peer: int) -> None:
        self._end: Any = end
        self._peer = peer
        # sends to the other thread, and by it: each is counted by one thread alone
        self._left, self._done = 0, 0

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Copy and ring, or leave both to another thread."""
        if not tensor.numel():
            return None
        source = dense(tensor.detach())
        if self._left > self._done or source.nbytes > _INLINE:
            self._left += 1
            return partial(self._later, source)
        bell = self._end.put(source)
        if not self._ring(bell, wait=False):
            self._left += 1
            return partial(self._later, source, bell)
        return None

    def _ring(self, bell: tuple[bytes, list[int]], *, wait: bool) -> bool:
        with sending(self._peer, 0):
            return self._end.ring(*bell, wait=wait)

    def _later(self, source: Tensor, bell: tuple[bytes, list[int]] | None = None) -> None:
        self._ring(bell or self._end.put(source), wait=True)
        self._done += 1

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """The next tensor, when it is asked for; it lies in memory already."""
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
    """Tensors between GPUs. Its kernels run on the communicator's own stream, beside the computing one.

    Waiting for a send would make the computing stream wait, so what is sent is kept until it is
    seen to be gone.
    """

    def __init__(self, peer: int, group: dist.ProcessGroup, device: torch.device) -> None:
        self.peer, self.group, self.device = peer, group, device
        self._late: list[tuple[dist.Work, Tensor]] = []

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Queue behind what computes the tensor."""
        source = elements(dense(tensor.detach()))
        work = dist.isend(source, self.peer, group=self.group)
        assert work is not None
        self._late = [*(late for late in self._late if not late[0].is_completed()), (work, source)]
        return None

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Queue; the computing stream will wait for it."""
        room = meta.room(self.device)
        return partial(
            wait, dist.irecv(elements(room), self.peer, group=self.group), room, self.peer
        )

    def flush(self) -> None:
        """Make the computing stream wait, which a later step would have to anyway."""
        for work, _ in self._late:
            work.wait()
        self._late.clear()


class Staged(Link):
    """Tensors of a GPU through pinned host memory, over another link; copies run on a stream of their own."""

    def __init__(self, link: Link, device: torch.device) -> None:
        self.link, self.device = link, device
        self._stream = torch.cuda.Stream(device)

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Copy to the host once computed; the rest is the host's."""
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
        if rest := self.link.isend(staged):
            rest()

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Receive on the host, then copy."""
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
def nccl_pairs(world: int) -> dict[tuple[int, int], dist.ProcessGroup]:
    """One communicator for each neighbour and direction; every rank of the world must call this at the same point."""
    ordered = [pair for a in range(world - 1) for pair in ((a, a + 1), (a + 1, a))]
    groups = [dist.new_group(sorted(pair), backend="nccl", timeout=TIMEOUT) for pair in ordered]
    return dict(zip(ordered, groups, strict=True))  # pyright: ignore[reportReturnType]


def connect(
    wire: Wire, neighbour: int, tag: int, device: torch.device, *, outgoing: bool, transport: str
) -> Link:
    """Make one direction; the neighbour must make its end at the same point of its own program.

    Args:
        wire: of this stage.
        neighbour: the other stage, j-1 or j+1.
        tag: ACTIVATION or GRADIENT, or STAMPS more.
        device: where tensors live here.
        outgoing: whether we send.
        transport: "auto" takes the fastest that there is; "shm" insists, for tensors on the CPU,
            and so does "gloo", which tensors of a GPU reach through pinned host memory.

    Raises:
        ValueError: at both ends, if they share no memory and "shm" insists on it.
    """
    peer = wire.world_rank(neighbour)
    if device.type == "cuda" and transport != "gloo" and "nccl" in dist.get_backend_config():
        here = wire.world_rank(wire.rank)
        pair = (here, peer) if outgoing else (peer, here)
        return Nccl(peer, nccl_pairs(dist.get_world_size())[pair], device)
    if device.type != "cpu":
        return Staged(Gloo(peer, tag, pinned=True), device)
    if transport != "gloo" and (end := _shared(wire, neighbour, outgoing=outgoing)):
        return Shared(end, peer)
    if transport == "shm":
        raise ValueError(
            f"transport='shm': stages {wire.rank} and {neighbour} share no Linux host; try 'auto'"
        )
    return Gloo(peer, tag)


def _shared(wire: Wire, neighbour: int, *, outgoing: bool) -> shm.Sender | shm.Receiver | None:
    """Shared memory, if both ends can have it."""
    if not outgoing:
        receiver = shm.Receiver() if shm.available() else None
        wire.send_object((shm.host(), receiver.address) if receiver else None, neighbour)
        if wire.recv_object(neighbour) and receiver:
            receiver.accept()
            return receiver
        if receiver:
            receiver.close()
        return None
    offer = wire.recv_object(neighbour)
    sender = None
    if offer and shm.available() and offer[0] == shm.host():
        try:
            sender = shm.Sender(offer[1])
        except OSError:
            sender = None
    wire.send_object(sender is not None, neighbour)
    return sender
