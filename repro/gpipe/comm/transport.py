"""Links between neighbouring ranks: activations go from rank r to r+1, gradients back.

The kind of a link depends on where the two ranks are:

    shared memory   tensors on the CPU, both ranks on one host: the sender makes the only copy
    gloo            tensors on the CPU, any two hosts
    NCCL            every rank has its own GPU: one communicator for each link, so that a receive
                    does not block a send
    host-staged     ranks that share a GPU: through pinned host memory and gloo, with the copies
                    on a CUDA stream of their own
"""

import ctypes
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import cache, partial
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import TIMEOUT, ControlChannel, post, wait
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Form, Message, aligned, dense, elements, received, tensors_in
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import reaching

TAGS = {"F": 1, "B": 2}  # gloo's, of activations and gradients; control_channel.CONTROL is another
_MORE = 3  # added to one of them: the tag of what follows a message that announces it
TRANSPORTS = ("auto", "shm", "gloo")
# Before the tensors of a message over gloo: bytes of the message that follows in place of this one,
# or 0; bytes of the form between this header and the tensors, or 0; and when the
# message may be used.
_HEADER = Struct("<qqd")
_START = aligned(_HEADER.size)


class Gloo(Link):
    """Messages in host memory over the default process group; each direction has its own tag.

    A receive is posted ahead: for a message of the last form if that was the form twice, else for a
    header alone. Where the message is another one, the sender fills what is posted with a header
    that announces it, and sends the message behind it.
    """

    def __init__(self, peer: int, tag: int, *, pinned: bool = False) -> None:
        super().__init__(peer)
        self.tag, self.pinned = tag, pinned
        self._posted: dict[Hashable, int] = {}  # bytes for which the receiver posts, by key

    def isend(self, message: Message, key: Hashable) -> Callable[[], object]:
        ready, form = self._ready(message.form.content), self._new_form(key, message.form)
        start = aligned(_HEADER.size + len(form))
        posted, size = self._posted.get(key, _START), start + self._nbytes(message.form)
        self._posted[key] = _START if form else size
        packed = torch.empty(size, dtype=torch.uint8)
        address = packed.data_ptr()
        ctypes.memmove(address, _HEADER.pack(0, len(form), ready) + form, _HEADER.size + len(form))
        message.copy_to(address + start)
        if size == posted:
            return self._start(packed, self.tag)
        notice = torch.empty(posted, dtype=torch.uint8)
        ctypes.memmove(notice.data_ptr(), _HEADER.pack(size, 0, 0.0), _HEADER.size)
        finish_notice = self._start(notice, self.tag)
        finish = self._start(packed, self.tag + _MORE)
        return lambda: (finish_notice(), finish())

    def _nbytes(self, form: Form) -> int:
        """Bytes of the tensors in a message."""
        return form.nbytes

    def _start(self, packed: Tensor, tag: int) -> Callable[[], Tensor]:
        with reaching(self.peer):
            work = dist.isend(packed, self.peer, tag=tag)
        assert work is not None

        def wait_for_send() -> Tensor:
            with reaching(self.peer):
                work.wait(TIMEOUT)
            return packed  # which lives until it is sent

        return wait_for_send

    def irecv(self, key: Hashable) -> Callable[[], Message]:
        return partial(self._arrive, key, self._post(self._posted.get(key, _START), self.tag))

    def _post(self, size: int, tag: int) -> Callable[[], Tensor]:
        return post(size, self.peer, tag, pinned=self.pinned)

    def _arrive(self, key: Hashable, arriving: Callable[[], Tensor]) -> Message:
        packed = arriving()
        follows, new_form, ready = _read_header(packed)
        if follows:
            packed = self._post(follows, self.tag + _MORE)()
            _, new_form, ready = _read_header(packed)
        form = self._arrived_form(key, new_form)
        start = aligned(_HEADER.size + len(new_form))
        self._posted[key] = _START if new_form else start + self._nbytes(form)
        message = self._unpack(form, packed, start)
        if ready:
            wait_until(ready)  # no receive is pending any more, so the status shows none
        return message

    def _unpack(self, form: Form, packed: Tensor, start: int) -> Message:
        return received(form, tensors_in(packed.untyped_storage(), start, form))


def _read_header(packed: Tensor) -> tuple[int, bytes, float]:
    """The number of bytes that follow, the form, and when the message may be used."""
    address = packed.data_ptr()
    follows, form_size, ready = _HEADER.unpack(ctypes.string_at(address, _HEADER.size))
    return follows, ctypes.string_at(address + _HEADER.size, form_size), ready


class Nccl(Gloo):
    """Messages between GPUs; NCCL's kernels run on the communicator's own CUDA stream.

    Before each message a header and its form, if that is new, go over gloo, since the bytes of a
    GPU cannot be read without waiting for it. To wait for a send would make the computing stream
    wait. So tensors that are sent are kept until their send has completed.
    """

    def __init__(self, peer: int, tag: int, group: dist.ProcessGroup, device: torch.device) -> None:
        super().__init__(peer, tag)
        self.group, self.device = group, device
        self._unfinished: list[tuple[dist.Work, Tensor]] = []

    def isend(self, message: Message, key: Hashable) -> Callable[[], object]:
        """Queue the send behind the kernels that compute the tensors."""
        finish_header = super().isend(Message([], message.form), key)
        self._unfinished = [send for send in self._unfinished if not send[0].is_completed()]
        for tensor in message.tensors:
            source = elements(dense(tensor.detach()))
            self._unfinished.append((self._queue(dist.isend, source), source))
        return finish_header

    def _nbytes(self, form: Form) -> int:
        return 0

    def _queue(self, operation: Callable[..., Any], tensor: Tensor) -> dist.Work:
        return operation(tensor, self.peer, group=self.group)

    def _unpack(self, form: Form, packed: Tensor, start: int) -> Message:
        """Queue the receives; the computing stream will wait for them."""
        rooms = [meta.room(self.device) for meta in form.tensors]
        works = [self._queue(dist.irecv, elements(room)) for room in rooms]
        for work, room in zip(works, rooms, strict=True):
            wait(work, room, self.peer)
        return received(form, rooms)

    def flush(self) -> None:
        """Make the computing stream wait for all sends, as a later step would have to anyway."""
        for work, _ in self._unfinished:
            work.wait()
        self._unfinished.clear()


class Staged(Gloo):
    """Messages of a GPU over gloo; copies to pinned host memory run on their own stream."""

    def __init__(self, peer: int, tag: int, device: torch.device) -> None:
        super().__init__(peer, tag, pinned=True)
        self.device = device
        self._stream = torch.cuda.Stream(device)

    def isend(self, message: Message, key: Hashable) -> Callable[[], object]:
        """Start the copies to the host; the rest is to wait for them and to send."""
        staged: list[Tensor] = []
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for tensor in message.tensors:
                source = dense(tensor.detach())
                room = torch.empty_strided(
                    source.shape, source.stride(), dtype=source.dtype, pin_memory=True
                )
                staged.append(room.copy_(source, non_blocking=True))
                source.record_stream(self._stream)
            copied = torch.cuda.Event()
            copied.record()

        def send() -> None:
            copied.synchronize()
            super(Staged, self).isend(Message(staged, message.form), key)()

        return send

    def _unpack(self, form: Form, packed: Tensor, start: int) -> Message:
        """Copy from the host to the device."""
        staged = super()._unpack(form, packed, start)
        computing = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            tensors = [t.detach().to(self.device, non_blocking=True) for t in staged.tensors]
        computing.wait_stream(self._stream)
        for tensor, meta in zip(tensors, form.tensors, strict=True):
            tensor.record_stream(computing)
            tensor.requires_grad_(meta.requires_grad)
        return Message(tensors, form)


@cache
def nccl_pairs(world: int, ring: int = 0) -> dict[tuple[int, int, int], dist.ProcessGroup]:
    """(from rank, to rank, tag) -> communicator; all ranks must call this at the same point.

    `ring` is how many ranks form a ring, whose last one is linked to its first; 0 without rings. In
    a ring of two ranks activations and gradients go the same way, and NCCL has no tags of its own.
    """
    pairs = [(rank, rank + 1) for rank in range(world - 1)]
    if ring:
        pairs += [(first + ring - 1, first) for first in range(0, world - ring + 1, ring)]
    links: list[tuple[int, int, int]] = []
    for rank, after in pairs:
        links += [(rank, after, TAGS["F"]), (after, rank, TAGS["B"])]
    return {  # pyright: ignore[reportReturnType]
        link: dist.new_group(sorted(link[:2]), backend="nccl", timeout=TIMEOUT) for link in links
    }


def connect(
    channel: ControlChannel,
    neighbour: int,
    of: str,
    device: torch.device,
    *,
    outgoing: bool,
    transport: str,
    ring: bool = False,
) -> Link:
    """Make one direction; the neighbour must make its end at the same point of its own program.

    `of` is "F" for a link of activations, "B" for one of gradients.
    "auto" takes the fastest kind that is possible; "shm" takes shared memory only; "gloo" takes
    gloo only, with tensors of a GPU copied through pinned host memory. In a ring the last rank is
    also linked to the first.
    """
    peer, tag = channel.world_rank(neighbour), TAGS[of]
    if device.type == "cuda" and transport != "gloo" and "nccl" in dist.get_backend_config():
        rank, world = channel.world_rank(channel.rank), dist.get_world_size()
        if ring and world % channel.ranks:
            raise ValueError(
                f"stages={channel.ranks}: with several stages on each rank, NCCL needs all {world} "
                "processes in pipelines; start a multiple of them, or try transport='gloo'"
            )
        pair = (rank, peer) if outgoing else (peer, rank)
        groups = nccl_pairs(world, channel.ranks if ring else 0)
        return Nccl(peer, tag, groups[*pair, tag], device)
    if device.type != "cpu":
        return Staged(peer, tag, device)
    if transport != "gloo":
        end = (
            _shared_sender(channel, neighbour) if outgoing else _shared_receiver(channel, neighbour)
        )
        if end is not None:
            return end
    if transport == "shm":
        raise ValueError(
            f"transport='shm': ranks {channel.rank} and {neighbour} share no Linux host; try 'auto'"
        )
    return Gloo(peer, tag)


def _shared_receiver(channel: ControlChannel, neighbour: int) -> shm.Receiver | None:
    """Offer the neighbour shared memory; None if this host has none or the neighbour cannot."""
    receiver = shm.Receiver(channel.world_rank(neighbour)) if shm.available() else None
    channel.send_object((shm.host(), receiver.address) if receiver else None, neighbour)
    is_connected = channel.recv_object(neighbour)
    if receiver and is_connected:
        receiver.accept()
    elif receiver:
        receiver.close()
    return receiver if is_connected else None


def _shared_sender(channel: ControlChannel, neighbour: int) -> shm.Sender | None:
    """Connect to the shared memory that the neighbour offers; None where that is not possible."""
    offer = channel.recv_object(neighbour)
    sender = None
    if offer and shm.available() and offer[0] == shm.host():
        # On the same host the address may still be out of reach, in another namespace.
        with suppress(OSError):
            sender = shm.Sender(offer[1], channel.world_rank(neighbour))
    channel.send_object(sender is not None, neighbour)
    return sender
