"""Messages between two processes of one host through shared memory: one copy, made by the sender.

The sender copies the tensors of a message into a segment and notifies the receiver over a socket.
The receiver computes on the segment itself. The segment is free again when the last tensor on it is
deleted.

Segments are anonymous files whose descriptors are passed over the socket. So nothing is left behind
however a process ends, and a neighbour that dies is noticed at once.
"""

import ctypes
import errno
import mmap
import os
import secrets
import socket
import struct
import sys
import time
import weakref
from collections.abc import Hashable
from pathlib import Path

import torch

from repro.gpipe.comm.link import Link
from repro.gpipe.comm.message import Message, aligned, received, tensors_in
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import reaching, waiting

# A notification: number of the segment; its size if its descriptor is passed along, else 0; bytes
# of the form, which precedes the tensors where it is new; and when the message may be used.
_NOTE = struct.Struct("<IIId")
# The first byte of a segment marks it as used or free. Data begins a page later, so it is aligned.
_FREE, _TAKEN = b"\0", b"\1"


def available() -> bool:
    return sys.platform == "linux"


def host() -> str:
    """Equal for processes that can share memory: of a running kernel, namespaces and user.

    Empty where there is no shared memory.
    """
    if not available():
        return ""
    namespaces = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "user"))
    return " ".join([boot_id(), *map(str, namespaces), str(os.getuid())])


def boot_id() -> str:
    """Equal for all processes of a host, also in containers: those whose clocks are the same."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if available() else socket.gethostname()


class _Segment:
    """Memory that both processes map: a page that holds the mark, then the data."""

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number = number
        # `mmap.mmap` would keep a descriptor open for each segment, and a process may have only
        # about a thousand.
        mapped = torch.UntypedStorage.from_file(f"/proc/self/fd/{fd}", True, size)
        self.memory = (ctypes.c_char * size).from_address(mapped.data_ptr())
        self.memory.mapped = mapped  # pyright: ignore[reportAttributeAccessIssue]
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8, offset=mmap.PAGESIZE)

    def put(self, message: Message, form: bytes) -> None:
        """Copy a message in, behind its form if that is new to the receiver."""
        self.memory[0] = _TAKEN
        address = self.bytes.data_ptr()
        ctypes.memmove(address, form, len(form))
        message.copy_to(address + aligned(len(form)))

    def storage(self, start: int, size: int) -> torch.UntypedStorage:
        """A part of the data; the segment is marked free when the storage is deleted."""
        owner = (ctypes.c_char * max(1, size)).from_buffer(self.memory, mmap.PAGESIZE + start)
        weakref.finalize(owner, self.memory.__setitem__, 0, _FREE).atexit = False
        return torch.frombuffer(owner, dtype=torch.uint8).untyped_storage()


class Sender(Link):
    """The sending end, connected to the address of the receiver; `peer` is its rank."""

    def __init__(self, address: str, peer: int) -> None:
        super().__init__(peer)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(address)
        self._segments: list[_Segment] = []

    def send(self, message: Message, key: Hashable) -> None:
        """Copy a message into a free segment, and notify the receiver.

        This waits only where the receiver is so many messages behind that the socket is full.
        """
        form, ready = self._new_form(key, message), self._pace(message.form.content)
        needed = max(1, aligned(len(form)) + message.form.nbytes)
        free = [segment for segment in self._segments if segment.memory[0] == _FREE]
        segment = next((segment for segment in free if len(segment.bytes) >= needed), None)
        size, fds = 0, []
        if segment is None:  # make one, in the place of one that is too small
            number = free[0].number if free else len(self._segments)
            size = mmap.PAGESIZE * (1 - (-needed // mmap.PAGESIZE))
            fds = [os.memfd_create("gpipe")]
            try:
                os.posix_fallocate(fds[0], 0, size)
            except OSError as error:
                os.close(fds[0])
                raise MemoryError(
                    f"no {size} bytes of shared memory for a message: {error.strerror}"
                ) from None
            segment = _Segment(number, fds[0], size)
            self._segments[number : number + 1] = [segment]
        segment.put(message, form)
        note = _NOTE.pack(segment.number, size, len(form), ready)
        with waiting(self.peer), reaching(self.peer):
            socket.send_fds(self._socket, [note], fds)
        for fd in fds:
            os.close(fd)

    def close(self) -> None:
        """End the connection; messages that were sent can still be received."""
        self._socket.close()


class Receiver(Link):
    """The receiving end; it listens at `address` until `accept`. `peer` is the sender's rank."""

    looks = True

    def __init__(self, peer: int) -> None:
        super().__init__(peer)
        self.address = f"\0gpipe-{secrets.token_hex(16)}"  # abstract: no file is left behind
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.address)
        self._socket.listen()
        self._segments: dict[int, _Segment] = {}

    def accept(self) -> None:
        """Accept the connection that the sender has made; refuse those of other users."""
        listening = self._socket
        while True:
            self._socket, _ = listening.accept()
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _process, user, _group = struct.unpack("3i", credentials)
            if user == os.getuid():
                break
            self._socket.close()
        listening.close()

    def has_arrived(self) -> bool:
        """Look at the next notification; at the end of the connection it is empty."""
        try:
            with reaching(self.peer):
                note = self._socket.recv(_NOTE.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return not note or _NOTE.unpack(note)[3] <= time.perf_counter()

    def receive(self, key: Hashable) -> Message:
        """Wait for the next message."""
        with waiting(self.peer), reaching(self.peer):
            note, fds, *_ = socket.recv_fds(self._socket, _NOTE.size, 1)
            if not note:
                raise ConnectionError("the neighbouring rank closed its connection")
        number, size, form_size, ready = _NOTE.unpack(note)
        if size and not fds:  # the kernel drops a descriptor for which there is no room
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for fd in fds:
            self._segments[number] = _Segment(number, fd, size)
            os.close(fd)
        segment = self._segments[number]
        form = self._arrived_form(key, ctypes.string_at(segment.bytes.data_ptr(), form_size))
        storage = segment.storage(aligned(form_size), form.nbytes)
        message = received(form, tensors_in(storage, 0, form))
        if ready:
            wait_until(ready)
        return message

    def close(self) -> None:
        self._socket.close()
