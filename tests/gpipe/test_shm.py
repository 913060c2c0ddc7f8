"""Shared memory: both ends in one process, and one end in a process that is killed."""

import errno
import mmap
import os
import resource
import signal
import socket
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from repro.gpipe.comm import shm
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import TensorMeta, dense
from repro.gpipe.comm.transport import Shared

pytestmark = pytest.mark.skipif(
    not shm.available(), reason="shared memory between processes needs Linux"
)

LARGE = 2**19  # float32 numbers: more than a link copies in the computing thread


@pytest.fixture
def ends():
    """A sender and its receiver."""
    receiver = shm.Receiver()
    sender = shm.Sender(receiver.address)
    receiver.accept()
    yield sender, receiver
    sender.close()
    receiver.close()


@pytest.fixture
def linked(ends):
    """Both ends as links, and the thread that finishes what is sent."""
    outbox = Outbox()
    yield Shared(ends[0], 1), Shared(ends[1], 0), outbox
    outbox.close()


def cross(ends, tensor):
    sender, receiver = ends
    assert sender.notify(*sender.put(dense(tensor)), wait=False)
    return receiver.receive(TensorMeta.of(tensor))


def test_a_descriptor_for_which_there_is_no_room_is_missed(ends):
    """The kernel drops it without a word."""
    tensor = torch.ones(3)
    ends[0].notify(*ends[0].put(tensor), wait=False)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            ends[1].receive(TensorMeta.of(tensor))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7) % 2 == 0,
        torch.randn(33, 5).bfloat16(),
        torch.randn(5, dtype=torch.complex128),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.tensor(2**62),
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(9).double()[1:],
    ],
    ids=str,
)
def test_bits_and_strides_cross(ends, tensor):
    arrived = cross(ends, tensor)
    assert torch.equal(arrived, tensor)
    assert (arrived.dtype, arrived.stride()) == (tensor.dtype, tensor.stride())
    assert arrived.data_ptr() % 64 == 0


def test_nothing_crosses_for_an_empty_tensor(linked):
    sending, receiving, outbox = linked
    for tensor in (torch.zeros(0), torch.zeros(3, 0, dtype=torch.int64), torch.ones(2)):
        outbox.send(sending, [tensor])
        assert torch.equal(receiving.irecv(TensorMeta.of(tensor))(), tensor)


def test_a_segment_is_reused_when_its_last_view_is_gone(ends):
    sender, _ = ends
    kept = cross(ends, torch.full((100,), 1.0))
    view = kept[10:20].view(2, 5)
    del kept
    others = [cross(ends, torch.full((100,), float(n))) for n in range(2, 6)]
    assert len(sender._segments) == 5
    assert view.unique().tolist() == [1.0], "a tensor that is kept is never overwritten"
    where = view.data_ptr() - 40
    del view
    assert cross(ends, torch.full((100,), 9.0)).data_ptr() == where
    assert [t[0].item() for t in others] == [2.0, 3.0, 4.0, 5.0]
    assert len(sender._segments) == 5


def test_a_graph_keeps_its_segment(ends):
    weight = torch.ones(10, requires_grad=True)
    product = (cross(ends, torch.arange(10.0)) * weight).sum()
    cross(ends, torch.zeros(10))
    product.backward()
    assert torch.equal(weight.grad, torch.arange(10.0))  # pyright: ignore[reportArgumentType]


def test_segments_that_became_too_small_are_replaced(ends):
    sender, receiver = ends
    for numbers in (10, 5_000, 200_000, 5_000, 300_000, 10):
        tensor = torch.randn(numbers)
        assert torch.equal(cross(ends, tensor), tensor)
    assert len(sender._segments) == len(receiver._segments) == 1
    assert len(sender._segments[0].bytes) >= 300_000 * 4


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def mapped() -> int:
    """How many segments this process sees, twice where it has both ends."""
    return Path("/proc/self/maps").read_text().count("memfd:gpipe")


def test_thousands_of_messages_leave_nothing_behind(ends):
    sender, receiver = ends
    before, pages = descriptors(), mapped()
    held = []
    for n in range(3000):
        held.append((n, cross(ends, torch.full((1 + n % 7 * 1000,), float(n)))))
        if len(held) > n % 5:
            first, tensor = held.pop(0)
            assert tensor[0] == tensor[-1] == first
            del tensor
    assert descriptors() == before
    assert len(sender._segments) <= 10
    held.clear()
    sender._segments.clear()
    receiver._segments.clear()
    assert mapped() == pages


def test_a_receiver_far_behind_blocks_nobody(linked):
    """2000 messages fit no socket's buffer; small ones do not overtake large ones either."""
    sending, receiving, outbox = linked
    tensors = [torch.full((LARGE if n % 500 == 7 else 1 + n % 3,), float(n)) for n in range(2000)]
    sent = threading.Thread(target=outbox.send, args=(sending, tensors))
    sent.start()
    sent.join(60)
    assert not sent.is_alive(), "the computing thread has gone on"
    assert sending._left > sending._done, "and left something to be finished"
    for tensor in tensors:
        assert torch.equal(receiving.irecv(TensorMeta.of(tensor))(), tensor)
    outbox.flush()
    outbox.send(sending, [torch.ones(3)])
    assert sending._left == sending._done, "the computing thread sends again"
    assert torch.equal(receiving.irecv(TensorMeta.of(torch.ones(3)))(), torch.ones(3))


def test_large_and_small_messages_keep_their_order(linked):
    sending, receiving, outbox = linked
    tensors = [
        torch.full((size,), float(n)) for n, size in enumerate([LARGE, 1, LARGE, 2, 3, LARGE] * 5)
    ]
    outbox.send(sending, tensors)
    for tensor in tensors:
        assert torch.equal(receiving.irecv(TensorMeta.of(tensor))(), tensor)
    outbox.flush()


def test_a_closed_connection_is_an_error_at_the_other_end(ends):
    sender, receiver = ends
    assert sender.notify(*sender.put(torch.ones(2)), wait=False)
    sender.close()
    assert receiver.receive(TensorMeta.of(torch.ones(2))).tolist() == [1, 1], (
        "what was sent still arrives"
    )
    with pytest.raises(ConnectionError, match="neighbouring stage closed its connection"):
        receiver.receive(TensorMeta.of(torch.ones(2)))


@pytest.mark.parametrize("numbers", [1, LARGE])
def test_sending_to_a_receiver_that_is_gone(linked, numbers):
    """A large message fails in the other thread, and the computing one hears of it."""
    sending, receiving, outbox = linked
    receiving.close()
    with suppress(ConnectionError):  # a small message fails at once
        outbox.send(sending, [torch.ones(numbers)])
        with pytest.raises(ConnectionError):
            outbox.flush()
    with pytest.raises(ConnectionError):
        outbox.send(sending, [torch.ones(1)])


def test_no_address_no_sender():
    with pytest.raises(ConnectionRefusedError):
        shm.Sender("\0gpipe-nobody")


def test_another_users_connection_is_none(monkeypatch):
    receiver = shm.Receiver()
    stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stranger.connect(receiver.address)
    sender = shm.Sender(receiver.address)
    users = iter([os.getuid() + 1, os.getuid()])
    monkeypatch.setattr(shm.os, "getuid", lambda: next(users))
    receiver.accept()
    assert stranger.recv(1) == b"", "shown the door"
    assert cross((sender, receiver), torch.ones(2)).tolist() == [1, 1]
    for end in (stranger, sender, receiver):
        end.close()


def test_another_users_processes_are_on_another_host(monkeypatch):
    here = shm.host()
    monkeypatch.setattr(shm.os, "getuid", lambda: -1)
    assert shm.host() != here


def test_no_memory_left(ends, monkeypatch):
    sender, _ = ends

    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(shm.os, "posix_fallocate", full)
        with pytest.raises(
            MemoryError,
            match=f"no {2 * mmap.PAGESIZE} bytes of shared memory for a message: No space",
        ):
            sender.put(torch.ones(3))
    assert descriptors() == before
    assert cross(ends, torch.ones(3)).tolist() == [1, 1, 1], (
        "and it goes on where there is some again"
    )


def send_and_wait(address: str) -> None:
    """A sender that has sent and never ends."""
    sender = shm.Sender(address)
    sender.notify(*sender.put(torch.arange(5.0)), wait=True)
    time.sleep(3600)


def test_a_killed_sender_leaves_nothing_behind():
    receiver = shm.Receiver()
    process = get_context("spawn").Process(target=send_and_wait, args=(receiver.address,))
    process.start()
    receiver.accept()
    meta = TensorMeta.of(torch.arange(5.0))
    arrived = receiver.receive(meta)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "memfd:gpipe" in maps
    assert "/dev/shm" not in maps, "segments have no name that could outlive them"
    os.kill(process.pid, signal.SIGKILL)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConnectionError):
        receiver.receive(meta)
    assert arrived.tolist() == [0, 1, 2, 3, 4], "what has arrived stays"
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    receiver.close()
