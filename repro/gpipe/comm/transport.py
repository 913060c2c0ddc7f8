"""Links over torch.distributed: gloo, NCCL, and gloo with the tensors of a GPU."""

import ctypes
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm.control_channel import TIMEOUT, post, wait
from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Form, Message, aligned, dense, elements, received, tensors_in
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import reaching, status

TAGS = {"F": 1, "B": 2}  # gloo's, of activations and gradients; control_channel.CONTROL is another
_MORE = 3  # added to one of them: the tag of what follows a message that announces it
# Before the tensors of a message over gloo: bytes of the message that follows in place of this one,
# or 0; bytes of the form between this header and the tensors, or 0; and when the
# message may be used.
_HEADER = Struct("<qqd")
_START = aligned(_HEADER.size)
_AHEAD = 2  # receives that are kept posted; each one occupies memory


class Gloo(Link):
    """Messages in host memory over the default process group; each direction has its own tag.

    Receives are posted ahead: for a message of the last form if that was the form twice, else for a
    header alone. Where the message is another one, the sender fills what is posted with a header
    that announces it, and sends the message behind it.

    gloo's own thread sends. What it sends is kept until `flush`, as torch's pipelines do, since
    only a thread that waits learns when it is sent.
    """

    pinned = False  # whether the host memory is one that a GPU copies to and from

    def __init__(self, peer: int, tag: int) -> None:
        super().__init__(peer)
        self.tag = tag
        self._posted: dict[Hashable, int] = {}  # bytes for which the receiver posts, by key
        self._due = deque[Hashable]()  # keys of the messages for which no receive is posted yet
        self._arriving = deque[tuple[Hashable, Callable[[], Tensor]]]()
        self._sending: list[tuple[dist.Work, Tensor]] = []

    def send(self, message: Message, key: Hashable) -> None:
        """Start to send, behind a header that announces the message where that is needed."""
        form, ready = self._new_form(key, message), self._pace(message.form.content)
        start = aligned(_HEADER.size + len(form))
        posted, size = self._posted.get(key, _START), start + self._nbytes(message.form)
        self._posted[key] = _START if form else size
        packed = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self.pinned)
        _write(packed, _HEADER.pack(0, len(form), ready) + form)
        self._fill(packed, start, message)
        if size == posted:
            self._start(packed, self.tag)
            return
        notice = torch.empty(posted, dtype=torch.uint8, device="cpu")
        _write(notice, _HEADER.pack(size, 0, 0.0))
        self._start(notice, self.tag)
        self._start(packed, self.tag + _MORE)

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        for work, packed in self._sending:
            wait(work, packed, self.peer, TIMEOUT)
        self._sending.clear()
        status.sending.discard(self)

    def expect(self, keys: Sequence[Hashable]) -> None:
        """Post the first receives."""
        self._due.extend(keys)
        self._post_ahead()

    def receive(self, key: Hashable) -> Message:
        """Wait for the next expected message, and post another receive."""
        expected, arriving = self._arriving.popleft()
        assert key == expected
        packed = arriving()
        follows, new_form, ready = _read_header(packed)
        if follows:
            packed = self._post(follows, self.tag + _MORE)()
            _, new_form, ready = _read_header(packed)
        form = self._arrived_form(key, new_form)
        start = aligned(_HEADER.size + len(new_form))
        self._posted[key] = _START if new_form else start + self._nbytes(form)
        message = self._unpack(form, packed, start)
        self._post_ahead()
        if ready:
            wait_until(ready)  # the computing thread waits for no receive, as the status shows
        return message

    def _post_ahead(self) -> None:
        while self._due and len(self._arriving) < _AHEAD:
            key = self._due.popleft()
            self._arriving.append((key, self._post(self._posted.get(key, _START), self.tag)))

    def _post(self, size: int, tag: int) -> Callable[[], Tensor]:
        return post(size, self.peer, tag, pinned=self.pinned)

    def _start(self, packed: Tensor, tag: int) -> None:
        """Start to send these bytes."""
        with reaching(self.peer):
            work = dist.isend(packed, self.peer, tag=tag)
        assert work is not None
        status.sending.add(self)
        self._sending.append((work, packed))

    # How the tensors of a message lie in these bytes.

    def _nbytes(self, form: Form) -> int:
        return form.nbytes

    def _fill(self, packed: Tensor, start: int, message: Message) -> None:
        message.copy_to(packed.data_ptr() + start)

    def _unpack(self, form: Form, packed: Tensor, start: int) -> Message:
        return received(form, tensors_in(packed.untyped_storage(), start, form))


def _write(packed: Tensor, head: bytes) -> None:
    ctypes.memmove(packed.data_ptr(), head, len(head))


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

    def send(self, message: Message, key: Hashable) -> None:
        """Queue the send behind the kernels that compute the tensors."""
        super().send(message, key)
        self._unfinished = [send for send in self._unfinished if not send[0].is_completed()]
        for tensor in message.tensors:
            source = elements(dense(tensor.detach()))
            self._unfinished.append((self._queue(dist.isend, source), source))

    def flush(self) -> None:
        """Make the computing stream wait for all sends, as a later step would have to anyway."""
        super().flush()
        for work, _ in self._unfinished:
            work.wait()
        self._unfinished.clear()

    def _queue(self, operation: Callable[..., Any], tensor: Tensor) -> dist.Work:
        return operation(tensor, self.peer, group=self.group)

    def _nbytes(self, form: Form) -> int:
        return 0

    def _fill(self, packed: Tensor, start: int, message: Message) -> None:
        """Leave the tensors to NCCL."""

    def _unpack(self, form: Form, packed: Tensor, start: int) -> Message:
        """Queue the receives; the computing stream will wait for them."""
        rooms = [meta.room(self.device) for meta in form.tensors]
        works = [self._queue(dist.irecv, elements(room)) for room in rooms]
        for work, room in zip(works, rooms, strict=True):
            wait(work, room, self.peer)
        return received(form, rooms)


class Staged(Gloo):
    """Messages of a GPU over gloo; copies to pinned host memory run on their own stream."""

    pinned = True

    def __init__(self, peer: int, tag: int, device: torch.device) -> None:
        super().__init__(peer, tag)
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._thread = ThreadPoolExecutor(1)  # waits for the copies, and starts to send
        self._copies: list[Future[None]] = []

    def flush(self) -> None:
        """Wait until everything is copied and sent."""
        for copy in self._copies:
            copy.result()
        self._copies.clear()
        super().flush()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fill(self, packed: Tensor, start: int, message: Message) -> None:
        """Start the copies to the host."""
        rooms = tensors_in(packed.untyped_storage(), start, message.form)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for room, tensor in zip(rooms, message.tensors, strict=True):
                source = dense(tensor.detach())
                room.copy_(source, non_blocking=True)
                source.record_stream(self._stream)

    def _start(self, packed: Tensor, tag: int) -> None:
        """Start to send once the copies have ended."""
        copied = self._stream.record_event()
        status.sending.add(self)  # a wait for the copies may be long, and is none without end

        def start() -> None:
            copied.synchronize()
            super(Staged, self)._start(packed, tag)

        self._copies.append(self._thread.submit(start))

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
