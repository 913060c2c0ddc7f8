"""Tensors between two processes of one host through shared memory: one copy, made by the sender.

The sender copies into a segment and rings a socket; the receiver computes on the segment itself,
which is free again when the last tensor on it is gone. Segments are anonymous files whose
descriptors travel over the socket, so nothing is left behind however a process ends, and a
neighbour that died is noticed at once.
"""

import ctypes
import mmap
import os
import secrets
import socket
import struct
import sys
import weakref
from pathlib import Path

import torch
from torch import Tensor

from repro.gpipe.comm.message import TensorMeta

# the segment's number, and its size where its descriptor comes along, else 0
_BELL = struct.Struct("<II")
_FD = struct.Struct("i")
# the first byte of a segment; data begins a page later, so it is aligned
_FREE, _TAKEN = b"\0", b"\1"
_LONG = 3600  # seconds without a message; a neighbour that dies is noticed at once


def available() -> bool:
    """Whether this system has what it takes: Linux."""
    return sys.platform == "linux"


def host() -> str:
    """What processes that can reach each other here have in common: the running kernel, namespaces and the user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = (Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "user"))
    return " ".join([boot, *map(str, namespaces), str(os.getuid())])


def _map(fd: int, size: int) -> "ctypes.Array[ctypes.c_char]":
    """The memory of a file, for as long as someone holds the result.

    `mmap.mmap` would keep a descriptor open for each, and a process may have a thousand only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    # All pages are fetched now, not while a step is timed.
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
    """Memory that both processes see: a page for the mark, then the data."""

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number = number
        self.memory = _map(fd, size)
        self.bytes = torch.frombuffer(self.memory, dtype=torch.uint8, offset=mmap.PAGESIZE)

    @property
    def free(self) -> bool:
        """Whether the receiver has let go of it."""
        return self.memory[0] == _FREE

    def put(self, tensor: Tensor) -> None:
        """Copy a dense tensor in; past torch, for the memory belongs to the receiver."""
        self.memory[0] = _TAKEN
        ctypes.memmove(self.bytes.data_ptr(), tensor.data_ptr(), tensor.nbytes)

    def tensor(self, meta: TensorMeta) -> Tensor:
        """The data as a tensor of its own; the segment is marked free when its storage goes."""
        owner = (ctypes.c_char * meta.nbytes).from_buffer(self.memory, mmap.PAGESIZE)
        weakref.finalize(owner, self.memory.__setitem__, 0, _FREE).atexit = False
        data = torch.frombuffer(owner, dtype=torch.uint8).untyped_storage()
        return torch.empty(0, dtype=meta.dtype).set_(data, 0, meta.shape, meta.layout)


class Sender:
    """The sending end of one direction; `address` is the receiver's.

    Raises:
        OSError: where the address cannot be reached.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._segments: list[_Segment] = []

    def put(self, tensor: Tensor) -> tuple[bytes, list[int]]:
        """Copy a dense tensor into a segment; what to `ring` then."""
        fitting = (s for s in self._segments if s.free and len(s.bytes) >= tensor.nbytes)
        if segment := next(fitting, None):
            segment.put(tensor)
            return _BELL.pack(segment.number, 0), []
        size = mmap.PAGESIZE * (1 + -(-tensor.nbytes // mmap.PAGESIZE))
        fd = os.memfd_create("gpipe")
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.close(fd)
            raise MemoryError(
                f"no {size} bytes of shared memory for a message: {error.strerror}"
            ) from None
        # it is replaced
        small = next((s.number for s in self._segments if s.free), len(self._segments))
        segment = _Segment(small, fd, size)
        self._segments[small : small + 1] = [segment]
        segment.put(tensor)
        return _BELL.pack(small, size), [fd]

    def ring(self, bell: bytes, fds: list[int], *, wait: bool) -> bool:
        """Tell the receiver; False if that would have to wait and may not."""
        flags = 0 if wait else socket.MSG_DONTWAIT
        try:
            socket.send_fds(self._socket, [bell], fds, flags) if fds else self._socket.send(
                bell, flags
            )
        except BlockingIOError:
            return False
        for fd in fds:
            os.close(fd)
        return True

    def close(self) -> None:
        """End the connection; what was sent can still be received."""
        self._socket.close()


class Receiver:
    """The receiving end: listens until `accept`."""

    def __init__(self) -> None:
        self.address = f"\0gpipe-{secrets.token_hex(16)}"  # in no folder: it goes with the socket
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(self.address)
        self._socket.listen()
        self._segments: dict[int, _Segment] = {}

    def accept(self) -> None:
        """Take the connection that the sender has made; one of another user's is none."""
        listening = self._socket
        while True:
            self._socket, _ = listening.accept()
            _, user, _ = struct.unpack(
                "3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if user == os.getuid():
                break
            self._socket.close()
        listening.close()
        # The kernel's own limit: Python's would ask twice for each message.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _LONG, 0))

    def receive(self, meta: TensorMeta) -> Tensor:
        """Wait for the next tensor, which is described by `meta`."""
        try:
            bell, descriptors, _, _ = self._socket.recvmsg(_BELL.size, socket.CMSG_SPACE(_FD.size))
        except BlockingIOError:
            raise ConnectionError(f"no message from the neighbouring stage in {_LONG} s") from None
        if not bell:
            raise ConnectionError("the neighbouring stage closed its connection")
        number, size = _BELL.unpack(bell)
        for _, _, descriptor in descriptors:
            (fd,) = _FD.unpack(descriptor)
            self._segments[number] = _Segment(number, fd, size)
            os.close(fd)
        return self._segments[number].tensor(meta)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
