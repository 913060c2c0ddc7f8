"""Shared memory: both ends in one process, and one end in a process that is killed."""

import errno
import mmap
import resource
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from repro.gpipe.comm import shm
from repro.gpipe.comm.message import Message
from repro.gpipe.tree import Slot

pytestmark = pytest.mark.skipif(not shm.available(), reason="needs Linux")
LARGE = 2**19  # float32 numbers


@pytest.fixture
def ends():
    """A sender and its receiver."""
    receiver = shm.Receiver(0)
    sender = shm.Sender(receiver.address, 1)
    receiver.accept()
    yield sender, receiver
    sender.close()
    receiver.close()


def message(tensor):
    return Message.of([tensor], None)


def cross(ends, tensor):
    """What arrives; with the form, unless that is the form of the last message."""
    ends[0].send(message(tensor), None)
    return ends[1].receive(None).tensors[0]


def test_a_segment_is_reused_when_its_last_view_is_gone_and_replaced_when_too_small(ends):
    sender, receiver = ends
    kept = cross(ends, torch.full((100,), 1.0))
    view = kept[10:20].view(2, 5)
    del kept
    others = [cross(ends, torch.full((100,), float(n))) for n in range(2, 6)]
    assert len(sender._segments) == 5
    assert view.unique().tolist() == [1.0], "a tensor that is kept is never overwritten"
    del view
    for numbers in (10, 5_000, 200_000, 5_000, 200_100, 10):
        tensor = torch.randn(numbers)
        assert torch.equal(cross(ends, tensor), tensor)
    assert [t[0].item() for t in others] == [2.0, 3.0, 4.0, 5.0]
    assert len(sender._segments) == len(receiver._segments) == 5


def test_a_number_that_becomes_true_arrives_as_true(ends):
    """Although the two are equal."""
    for constant in (1, True, 1.0):
        ends[0].send(Message.of([torch.ones(2)], (Slot(0), constant)), None)
        _, arrived = ends[1].receive(None).form.skeleton
        assert type(arrived) is type(constant)


def test_a_sender_far_ahead_waits_and_loses_nothing(ends):
    """2000 messages fit no socket's buffer."""
    sender, receiver = ends
    tensors = [torch.full((LARGE if n % 500 == 7 else 1 + n % 3,), float(n)) for n in range(2000)]

    def send_all():
        for tensor in tensors:
            sender.send(message(tensor), tensor.shape)

    sending = threading.Thread(target=send_all)
    sending.start()
    sending.join(1)
    assert sending.is_alive()
    for tensor in tensors:
        assert torch.equal(receiver.receive(tensor.shape).tensors[0], tensor)
    sending.join(60)


def test_no_memory_and_no_descriptor_left(ends, monkeypatch):
    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    open_files = len(list(Path("/proc/self/fd").iterdir()))
    words = f"no {2 * mmap.PAGESIZE} bytes of shared memory for a message: No space"
    with monkeypatch.context() as patch:
        patch.setattr(shm.os, "posix_fallocate", full)
        with pytest.raises(MemoryError, match=words):
            cross(ends, torch.ones(3))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    ends[0].send(message(torch.ones(3)), None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:  # the kernel drops a descriptor for which there is no room without a word
        with pytest.raises(OSError, match="Too many open files"):
            ends[1].receive(None)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def send_and_wait(address: str) -> None:
    """A sender that has sent and never ends."""
    sender = shm.Sender(address, 1)
    sender.send(message(torch.arange(5.0)), None)
    time.sleep(3600)


def test_a_killed_sender_leaves_nothing_behind():
    receiver = shm.Receiver(0)
    process = get_context("spawn").Process(target=send_and_wait, args=(receiver.address,))
    process.start()
    try:
        receiver.accept()
        arrived = receiver.receive(None).tensors[0]
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "memfd:gpipe" in maps
        assert "/dev/shm" not in maps, "segments have no name that could outlive them"
    finally:
        process.kill()
    with pytest.raises(ConnectionError, match="it closed its connection"):
        receiver.receive(None)
    assert arrived.tolist() == [0, 1, 2, 3, 4], "what has arrived stays"
    process.join(60)
    receiver.close()
