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
import weakref
from pathlib import Path

import torch

from repro.gpipe.comm.message import Form, Message, aligned, received, tensors_in

# A notification: number of the segment; its size if its descriptor is passed along, else 0; bytes
# of the form, which stands before the tensors where it is new; and when the message may be used.
_NOTE = struct.Struct("<IIId")
_FD = struct.Struct("i")
# The first byte of a segment says whether it is in use. Data begins a page later, so it is aligned.
_FREE, _TAKEN = b"\0", b"\1"
_TIMEOUT = 3600  # seconds without a message; a neighbour that dies is noticed at once


def available() -> bool:
    """True on Linux."""
    return sys.platform == "linux"


def host() -> str:
    """Identifies a host: equal for processes with the same running kernel, namespaces and user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "user"))
    return " ".join([boot, *map(str, namespaces), str(os.getuid())])


def _map(fd: int, size: int) -> "ctypes.Array[ctypes.c_char]":
    """Map a file into memory, until the result is deleted.

    `mmap.mmap` would keep a descriptor open for each segment, and a process may have only about a
    thousand.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    # Allocate all pages now, not while a step is timed.
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        raise MemoryError(
            f"no room to map {size} bytes of shared memory: {os.strerror(ctypes.get_errno())}"
        )
    memory = (ctypes.c_char * size).from_address(address)
    weakref.finalize(memory, libc.munmap, address, size).atexit = False
    return memory


class _Segment:
    """Memory that both processes map: a page that holds the mark, then the data."""

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number = number
        self.memory = _map(fd, size)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8, offset=mmap.PAGESIZE)

    @property
    def free(self) -> bool:
        """Whether the receiver has no tensor on it any more."""
        return self.memory[0] == _FREE

    def put(self, message: Message, form: bytes) -> None:
        """Copy a message in, behind its form if that is new to the receiver."""
        self.memory[0] = _TAKEN
        address = self.bytes.data_ptr()
        ctypes.memmove(address, form, len(form))
        message.copy_to(address + aligned(len(form)))

    def message(self, form_size: int, known: Form | None) -> Message:
        """The message in it; the segment is marked free when the tensors' storage is deleted."""
        form = known
        if form_size:
            form = Form.unpacked(bytes(self.bytes[:form_size].numpy()))
        assert form is not None, "the first message of its kind comes with its form"
        start, size = mmap.PAGESIZE + aligned(form_size), max(1, form.nbytes)
        owner = (ctypes.c_char * size).from_buffer(self.memory, start)
        weakref.finalize(owner, self.memory.__setitem__, 0, _FREE).atexit = False
        data = torch.frombuffer(owner, dtype=torch.uint8).untyped_storage()
        return received(form, tensors_in(data, 0, form))


class Sender:
    """The sending end of one direction.

    Args:
        address: of the receiver.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._segments: list[_Segment] = []

    def put(self, message: Message, form: bytes, ready: float) -> tuple[bytes, list[int]]:
        """Copy a message into a free segment; returns the arguments of `notify`.

        Args:
            message: to send.
            form: packed, if the receiver does not know it, else empty.
            ready: when the receiver may have the message; 0: at once.
        """
        needed = max(1, aligned(len(form)) + message.form.nbytes)
        free = [segment for segment in self._segments if segment.free]
        for segment in free:
            if len(segment.bytes) >= needed:
                segment.put(message, form)
                return _NOTE.pack(segment.number, 0, len(form), ready), []
        # No free segment is large enough: make one, in the place of one that is too small.
        number = free[0].number if free else len(self._segments)
        pages = -(-needed // mmap.PAGESIZE)
        size = mmap.PAGESIZE * (1 + pages)
        fd = os.memfd_create("gpipe")
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.close(fd)
            raise MemoryError(
                f"no {size} bytes of shared memory for a message: {error.strerror}"
            ) from None
        segment = _Segment(number, fd, size)
        self._segments[number : number + 1] = [segment]
        segment.put(message, form)
        return _NOTE.pack(number, size, len(form), ready), [fd]

    def notify(self, note: bytes, fds: list[int], *, wait: bool) -> bool:
        """Send the receiver a notification; False if it would have to wait and may not."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            if fds:
                socket.send_fds(self._socket, [note], fds, flags)
            else:
                self._socket.send(note, flags)
        except BlockingIOError:
            return False
        for fd in fds:
            os.close(fd)
        return True

    def close(self) -> None:
        """End the connection; messages that were sent can still be received."""
        self._socket.close()


class Receiver:
    """The receiving end of one direction; it listens at `address` until `accept`."""

    def __init__(self) -> None:
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
        # The kernel's time limit: Python's would take two system calls for each message.
        limit = struct.pack("ll", _TIMEOUT, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def receive(self, known: Form | None) -> tuple[Message, float]:
        """Wait for the next message; returns it and when it may be used.

        Args:
            known: its form, unless the message brings another one.
        """
        try:
            note, descriptors, _, _ = self._socket.recvmsg(_NOTE.size, socket.CMSG_SPACE(_FD.size))
        except BlockingIOError:
            raise ConnectionError(
                f"no message from the neighbouring stage in {_TIMEOUT} s"
            ) from None
        if not note:
            raise ConnectionError("the neighbouring stage closed its connection")
        number, size, form_size, ready = _NOTE.unpack(note)
        if size and not descriptors:  # the kernel drops a descriptor for which there is no room
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        for _, _, descriptor in descriptors:
            (fd,) = _FD.unpack(descriptor)
            self._segments[number] = _Segment(number, fd, size)
            os.close(fd)
        return self._segments[number].message(form_size, known), ready

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
