"""Links between neighbouring stages: activations go from stage j to j+1, gradients back.

A link is one direction. It starts sends and receives without blocking, in the order of its calls.
Its kind depends on where the two stages are:

    shared memory   tensors on the CPU, both stages on one host: the sender makes the only copy
    gloo            tensors on the CPU, any two hosts
    NCCL            every rank has its own GPU: one communicator for each link, so that a receive
                    does not block a send
    host-staged     stages that share a GPU: through pinned host memory and gloo, with the copies
                    on a CUDA stream of their own

A message brings its form along where that is not the form of the last message with the same key.
Both ends remember those.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from datetime import timedelta
from functools import cache, partial
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import ControlChannel, wait
from repro.gpipe.comm.message import (
    Form,
    Message,
    aligned,
    dense,
    elements,
    received,
    tensors_in,
)
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import reaching, sending, waiting

ACTIVATION, GRADIENT = 1, 2  # gloo's tags; control_channel.CONTROL is another
_MORE = 3  # added to one of them: the tag of what follows a message that says so
TRANSPORTS = ("auto", "shm", "gloo")
TIMEOUT = timedelta(hours=1)  # of one message; a neighbour that dies is noticed at once
# Up to so many bytes the computing thread copies itself: to wake another thread takes as long.
_INLINE = 2**20
# Before the tensors of a message over gloo: bytes of the message that follows in place of this one,
# or 0; bytes of the form that stands between this header and the tensors, or 0; and when the
# message may be used.
_HEADER = Struct("<qqd")
_START = aligned(_HEADER.size)


class Link(ABC):
    """One direction between this stage and a neighbour: a link either sends or receives.

    Attributes:
        speed: the most that it may do; None: as fast as it can. One message is sent at a time, and
            arrives `latency` later.
        free: when all messages are sent at that speed, in seconds of time.perf_counter, which the
            processes of a Linux host share.
    """

    def __init__(self) -> None:
        self._forms: dict[Hashable, Form] = {}
        self.speed: LinkSpeed | None = None
        self.free = -math.inf

    @abstractmethod
    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Start to send; returns the rest of the work, for a thread that may block, or None.

        Args:
            message: to send.
            key: which earlier messages are likely to have had the same form.
        """

    @abstractmethod
    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Start to receive; call the result to wait for the message, on this stage's device."""

    def flush(self) -> None:  # noqa: B027
        """Release the tensors that were sent; called when the rest of every send is done."""

    def close(self) -> None:  # noqa: B027
        """End the connection."""

    def _new_form(self, key: Hashable, form: Form) -> bytes:
        """The form as bytes if the receiver does not know it, else nothing; from now on it does."""
        known = self._forms.get(key)
        if known is form or known == form:
            return b""
        self._forms[key] = form
        return form.packed

    def _ready(self, nbytes: int) -> float:
        """When the receiver may have a message that is sent now; 0: at once."""
        if self.speed is None or not nbytes:
            return 0.0
        self.free = max(self.free, time.perf_counter()) + nbytes / self.speed.bytes_per_second
        return self.free + self.speed.latency


class Gloo(Link):
    """Messages in host memory over the default process group; each direction has its own tag.

    A receive is posted ahead: for a message of the last form if that was the form twice, else for a
    header alone. Where the message is another one, the sender fills what is posted with a header
    that says so, and sends the message behind it.
    """

    def __init__(self, peer: int, tag: int, *, pinned: bool = False) -> None:
        super().__init__()
        self.peer, self.tag, self.pinned = peer, tag, pinned
        self._repeated: dict[Hashable, bool] = {}  # whether the last form was that of before

    def _expected(self, key: Hashable) -> int:
        """Bytes for which the receiver posts a receive."""
        return _START + self._forms[key].nbytes if self._repeated.get(key) else _START

    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Hand the message over to gloo's own threads."""
        expected, ready = self._expected(key), self._ready(message.form.content)
        form = self._new_form(key, message.form)
        self._repeated[key] = not form
        start = _START + aligned(len(form))
        packed = torch.empty(start + message.form.nbytes, dtype=torch.uint8)
        values: Any = packed.numpy()
        _HEADER.pack_into(values, 0, 0, len(form), ready)
        message.copy_to(packed.data_ptr() + start)
        if not form and len(packed) == expected:
            return self._start(packed, self.tag)
        values[_START : _START + len(form)] = memoryview(form)
        notice = torch.empty(expected, dtype=torch.uint8)
        _HEADER.pack_into(notice.numpy(), 0, len(packed), 0, 0.0)  # pyright: ignore[reportArgumentType]
        finish_notice = self._start(notice, self.tag)
        finish = self._start(packed, self.tag + _MORE)
        return lambda: (finish_notice(), finish())

    def _start(self, packed: Tensor, tag: int) -> Callable[[], None]:
        with reaching(self.peer):
            work = dist.isend(packed, self.peer, tag=tag)
        return partial(self._wait_for_send, work, packed)

    def _wait_for_send(self, work: dist.Work | None, packed: Tensor) -> None:
        """Wait until the bytes are sent; keeps them alive until then."""
        assert work is not None
        with sending(self.peer, packed.nbytes):
            work.wait()

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Post the receive."""
        return partial(self._arrive, key, self._post(self._expected(key), self.tag))

    def _post(self, size: int, tag: int) -> Callable[[], Tensor]:
        room = torch.empty(size, dtype=torch.uint8, pin_memory=self.pinned)
        with reaching(self.peer):
            work = dist.irecv(room, self.peer, tag=tag)
        return partial(wait, work, room, self.peer)

    def _arrive(self, key: Hashable, arriving: Callable[[], Tensor]) -> Message:
        packed = arriving()
        follows, form_size, ready = _HEADER.unpack_from(packed.numpy())  # pyright: ignore[reportArgumentType]
        if follows:
            packed = self._post(follows, self.tag + _MORE)()
            _, form_size, ready = _HEADER.unpack_from(packed.numpy())  # pyright: ignore[reportArgumentType]
        if form_size:
            form = bytes(packed[_START : _START + form_size].numpy())
            self._forms[key] = Form.unpacked(form)
        self._repeated[key] = not form_size
        form = self._forms[key]
        start = _START + aligned(form_size)
        message = received(form, tensors_in(packed.untyped_storage(), start, form))
        if ready:
            wait_until(ready)  # no receive is pending any more, so the status does not say so
        return message


class Shared(Link):
    """Messages in shared memory; another thread than the computing one copies large ones."""

    def __init__(self, end: shm.Sender | shm.Receiver, peer: int) -> None:
        super().__init__()
        self._end: Any = end
        self._peer = peer
        # Sends left to the other thread, and sends that it has done. Each counter is written by one
        # thread only.
        self._left, self._done = 0, 0

    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Copy and notify, or leave both to another thread."""
        form, ready = self._new_form(key, message.form), self._ready(message.form.content)
        put = partial(self._end.put, message, form, ready)
        # A send must not overtake an earlier one that is left to the other thread.
        if self._left > self._done or message.form.nbytes > _INLINE:
            self._left += 1
            return partial(self._send_later, put)
        note = put()
        if not self._notify(note, wait=False):
            self._left += 1
            return partial(self._send_later, lambda: note)
        return None

    def _notify(self, note: tuple[bytes, list[int]], *, wait: bool) -> bool:
        with sending(self._peer, 0):
            return self._end.notify(*note, wait=wait)

    def _send_later(self, put: Callable[[], tuple[bytes, list[int]]]) -> None:
        self._notify(put(), wait=True)
        self._done += 1

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Nothing is posted: the next message already lies in memory when it is waited for."""
        return partial(self._receive, key)

    def _receive(self, key: Hashable) -> Message:
        with waiting(self._peer, 0), reaching(self._peer):
            message, ready = self._end.receive(self._forms.get(key))
        self._forms[key] = message.form
        if ready:
            wait_until(ready)
        return message

    def close(self) -> None:
        """End the connection."""
        self._end.close()


class Nccl(Link):
    """Messages between GPUs; NCCL's kernels run on the communicator's own CUDA stream.

    Before each message the size of its form, if that is new, and the form go over gloo, since the
    bytes of a GPU cannot be read without waiting for it. To wait for a send would make the
    computing stream wait. So tensors that are sent are kept until their send has completed.
    """

    def __init__(self, peer: int, tag: int, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__()
        self.peer, self.tag, self.group, self.device = peer, tag, group, device
        self._unfinished: list[tuple[dist.Work, Tensor]] = []

    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Queue the send behind the kernels that compute the tensors."""
        form = self._new_form(key, message.form)
        parts = [(torch.tensor([len(form)], dtype=torch.int64), self.tag)]
        if form:
            packed = torch.frombuffer(bytearray(form), dtype=torch.uint8)
            parts.append((packed, self.tag + _MORE))
        with reaching(self.peer):
            heads = [(dist.isend(part, self.peer, tag=tag), part) for part, tag in parts]
        self._unfinished = [send for send in self._unfinished if not send[0].is_completed()]
        for tensor in message.tensors:
            source = elements(dense(tensor.detach()))
            self._unfinished.append((self._start(dist.isend, source), source))
        return lambda: [wait(work, part, self.peer, "send") for work, part in heads]

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Queue the receive; the computing stream will wait for it."""
        return partial(self._arrive, key, self._post(torch.empty(1, dtype=torch.int64), self.tag))

    def _start(self, operation: Callable[..., Any], tensor: Tensor) -> dist.Work:
        return operation(tensor, self.peer, group=self.group)

    def _post(self, room: Tensor, tag: int) -> Callable[[], Tensor]:
        with reaching(self.peer):
            return partial(wait, dist.irecv(room, self.peer, tag=tag), room, self.peer)

    def _arrive(self, key: Hashable, size_of_form: Callable[[], Tensor]) -> Message:
        size = int(size_of_form().item())
        if size:
            form = self._post(torch.empty(size, dtype=torch.uint8), self.tag + _MORE)()
            self._forms[key] = Form.unpacked(bytes(form.numpy()))
        form = self._forms[key]
        rooms = [meta.room(self.device) for meta in form.tensors]
        works = [self._start(dist.irecv, elements(room)) for room in rooms]
        for work, room in zip(works, rooms, strict=True):
            wait(work, room, self.peer)
        return received(form, rooms)

    def flush(self) -> None:
        """Make the computing stream wait for all sends, as a later step would have to anyway."""
        for work, _ in self._unfinished:
            work.wait()
        self._unfinished.clear()


class Staged(Link):
    """Messages of a GPU over another link; copies to pinned host memory run on their own stream."""

    def __init__(self, link: Link, device: torch.device) -> None:
        super().__init__()
        self.link, self.device = link, device
        self._stream = torch.cuda.Stream(device)

    def isend(self, message: Message, key: Hashable) -> Callable[[], Any] | None:
        """Start the copies to the host; the rest is to wait for them and to send."""
        staged: list[Tensor] = []
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for tensor in message.tensors:
                source = dense(tensor.detach())
                staged.append(
                    torch.empty_strided(
                        source.shape, source.stride(), dtype=source.dtype, pin_memory=True
                    ).copy_(source, non_blocking=True)
                )
                source.record_stream(self._stream)
            copied = torch.cuda.Event()
            copied.record()
        return partial(self._send, copied, Message(staged, message.form), key)

    def _send(self, copied: torch.cuda.Event, staged: Message, key: Hashable) -> None:
        copied.synchronize()
        finish = self.link.isend(staged, key)
        if finish is not None:
            finish()

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        """Receive on the host, then copy to the device."""
        return partial(self._arrive, self.link.irecv(key))

    def _arrive(self, arriving: Callable[[], Message]) -> Message:
        staged = arriving()
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            tensors = [t.detach().to(self.device, non_blocking=True) for t in staged.tensors]
        computing.wait_stream(self._stream)
        for tensor, meta in zip(tensors, staged.form.tensors, strict=True):
            tensor.record_stream(computing)
            tensor.requires_grad_(meta.requires_grad)
        return Message(tensors, staged.form)

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
    wire: ControlChannel,
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
        tag: ACTIVATION or GRADIENT.
        device: where this rank keeps its tensors.
        outgoing: whether this rank sends.
        ring: whether the last rank is also linked to the first.
        transport: "auto" takes the fastest kind that is possible; "shm" takes shared memory only;
            "gloo" takes gloo only, with tensors of a GPU copied through pinned host memory.
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
        return Nccl(peer, tag, groups[*pair, tag], device)
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


def _shared_receiver(wire: ControlChannel, neighbour: int) -> shm.Receiver | None:
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


def _shared_sender(wire: ControlChannel, neighbour: int) -> shm.Sender | None:
    """Connect to the shared memory that the neighbour offers; None where that is not possible."""
    offer = wire.recv_object(neighbour)
    sender = None
    if offer and shm.available() and offer[0] == shm.host():
        # On the same host the address may still be out of reach, in another namespace.
        with suppress(OSError):
            sender = shm.Sender(offer[1])
    wire.send_object(sender is not None, neighbour)
    return sender
