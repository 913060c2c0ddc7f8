"""Shared memory: both ends in one process, and one end in a process that is killed."""

import errno
import mmap
import os
import resource
import signal
import threading
import time
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from repro.gpipe.comm import shm
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import Form, Message, offset_of

pytestmark = pytest.mark.skipif(
    not shm.available(), reason="shared memory between processes needs Linux"
)

LARGE = 2**19  # float32 numbers: more than a link copies in the computing thread


@pytest.fixture
def ends():
    """A sender and its receiver."""
    receiver = shm.Receiver(0)
    sender = shm.Sender(receiver.address, 1)
    receiver.accept()
    yield sender, receiver
    sender.close()
    receiver.close()


def message(*tensors):
    return Message([*tensors], Form.of(tensors, None))


def cross(ends, *tensors, key=None):
    """What arrives; with the form, unless that is the form of the last message with this key."""
    assert ends[0].isend(message(*tensors), key) is None
    arrived = ends[1].irecv(key)().tensors
    return arrived if len(tensors) > 1 else arrived[0]


def test_tensors_of_a_message_share_a_segment_and_the_form_stands_before_them(ends):
    sent = torch.arange(3), torch.randn(4, 2), torch.zeros(0, 3), torch.tensor(True)
    for _ in range(2):
        arrived = cross(ends, *sent)
        assert all(map(torch.equal, arrived, sent))
        assert all(t.data_ptr() % 64 == 0 for t in arrived)


def test_a_descriptor_for_which_there_is_no_room_is_missed(ends):
    """The kernel drops it without a word."""
    ends[0].isend(message(torch.ones(3)), None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            ends[1].irecv(None)()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7) % 2 == 0,
        torch.randn(33, 5).bfloat16(),
        torch.randn(5, dtype=torch.complex64).conj(),
        torch.tensor(2**62),
        torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.randn(9).double()[1:],
    ],
    ids=str,
)
def test_bits_and_strides_cross(ends, tensor):
    arrived = cross(ends, tensor)
    assert torch.equal(arrived, tensor)
    assert (arrived.dtype, arrived.stride()) == (tensor.dtype, tensor.stride())
    assert arrived.data_ptr() % 64 == offset_of(tensor)


def test_a_segment_is_reused_when_its_last_view_is_gone(ends):
    sender, _ = ends
    kept = cross(ends, torch.full((100,), 1.0))
    view = kept[10:20].view(2, 5)
    del kept
    others = [cross(ends, torch.full((100,), float(n))) for n in range(2, 6)]
    assert len(sender._segments) == 5
    assert view.unique().tolist() == [1.0], "a tensor that is kept is never overwritten"
    del view
    assert cross(ends, torch.full((100,), 9.0))[0] == 9.0
    assert [t[0].item() for t in others] == [2.0, 3.0, 4.0, 5.0]
    assert len(sender._segments) == 5


def test_segments_that_became_too_small_are_replaced(ends):
    sender, receiver = ends
    for numbers in (10, 5_000, 200_000, 5_000, 200_100, 10):
        tensor = torch.randn(numbers)
        assert torch.equal(cross(ends, tensor), tensor)
    assert len(sender._segments) == len(receiver._segments) == 1
    assert len(sender._segments[0].bytes) >= 200_100 * 4


def test_a_receiver_far_behind_blocks_nobody(ends):
    """2000 messages fit no socket's buffer; small ones do not overtake large ones either."""
    sending, receiving, outbox = *ends, Outbox()
    tensors = [torch.full((LARGE if n % 500 == 7 else 1 + n % 3,), float(n)) for n in range(2000)]

    def send_all():
        for tensor in tensors:
            outbox.send(sending, message(tensor), tensor.shape)

    sent = threading.Thread(target=send_all)
    sent.start()
    sent.join(60)
    assert not sent.is_alive(), "the computing thread has gone on"
    assert sending._left > sending._done, "and left something to be finished"
    for tensor in tensors:
        assert torch.equal(receiving.irecv(tensor.shape)().tensors[0], tensor)
    outbox.flush()
    assert torch.equal(cross(ends, torch.ones(3)), torch.ones(3)), "the computing thread again"
    outbox.close()


def test_no_memory_left(ends, monkeypatch):
    def full(fd, offset, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = len(list(Path("/proc/self/fd").iterdir()))
    words = f"no {2 * mmap.PAGESIZE} bytes of shared memory for a message: No space"
    with monkeypatch.context() as patch:
        patch.setattr(shm.os, "posix_fallocate", full)
        with pytest.raises(MemoryError, match=words):
            cross(ends, torch.ones(3))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def send_and_wait(address: str) -> None:
    """A sender that has sent and never ends."""
    sender = shm.Sender(address, 1)
    sender.isend(message(torch.arange(5.0)), None)
    time.sleep(3600)


def test_a_killed_sender_leaves_nothing_behind():
    receiver = shm.Receiver(0)
    process = get_context("spawn").Process(target=send_and_wait, args=(receiver.address,))
    process.start()
    receiver.accept()
    arrived = receiver.irecv(None)().tensors[0]
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert "memfd:gpipe" in maps
    assert "/dev/shm" not in maps, "segments have no name that could outlive them"
    os.kill(process.pid, signal.SIGKILL)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConnectionError, match="it closed its connection"):
        receiver.irecv(None)()
    assert arrived.tolist() == [0, 1, 2, 3, 4], "what has arrived stays"
    process.join(60)
    receiver.close()
