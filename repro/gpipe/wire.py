"""Small messages between the stages of a pipeline: announcements, losses, timelines, clocks."""

import pickle
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.here import reaching, receiving, sending

CONTROL = 3  # the tag that keeps them apart from activations and gradients


def wait(work: dist.Work | None, tensor: Tensor, peer: int, *, arriving: bool) -> Tensor:
    """Wait for what is sent to or received from a rank of the world; the tensor, which is kept until then."""
    if work is not None:
        with receiving(peer) if arriving else sending(peer, tensor.nbytes):
            work.wait()
    return tensor


class Wire:
    """Small messages between the stages of a pipeline, in host memory over the default group's gloo.

    Point to point only: a subgroup would have to be made by all processes, also by those that have no stage.

    Args:
        stages: K.
        rank: j, this stage.
        replica: which copy of the pipeline; stage j of it is rank replica x K + j of the world.
    """

    def __init__(self, stages: int, rank: int, replica: int = 0) -> None:
        self.stages = stages
        self.rank = rank
        self.replica = replica

    def world_rank(self, stage: int) -> int:
        """The process of a stage of this replica."""
        return self.replica * self.stages + stage

    def send_numbers(self, numbers: Sequence[int], stage: int) -> None:
        """Send three integers."""
        self.isend_numbers(numbers, stage)()

    def isend_numbers(self, numbers: Sequence[int], stage: int) -> Callable[[], object]:
        """The same without waiting until they are taken; call the result to do so."""
        return self._isend(torch.tensor(numbers), stage)

    def recv_numbers(self, stage: int) -> tuple[int, int, int]:
        """The counterpart of `send_numbers`."""
        a, b, c = self._irecv(torch.zeros(3, dtype=torch.int64), stage)().tolist()
        return a, b, c

    def send_object(self, value: object, stage: int) -> None:
        """Send anything that can be pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        self.send_numbers((data.numel(), 0, 0), stage)
        self._isend(data, stage)()

    def recv_object(self, stage: int) -> Any:
        """The counterpart of `send_object`; it trusts its peer, a process of the same program."""
        data = self._irecv(torch.zeros(self.recv_numbers(stage)[0], dtype=torch.uint8), stage)()
        return pickle.loads(bytes(data.numpy()))

    def from_last(self, value: float) -> float:
        """The last stage's value on every stage."""
        box = torch.tensor([value], dtype=torch.float64)
        if self.rank < self.stages - 1:
            return self._irecv(box, self.stages - 1)().item()
        self._send_all(box, range(self.stages - 1))
        return value

    def agree(self, state: int, value: float) -> tuple[int, float]:
        """The greatest state of any stage, and the last stage's value, on every stage, by way of the first."""
        if self.stages == 1:
            return state, value
        own = torch.tensor([state, value], dtype=torch.float64)
        others = [0] if self.rank else range(1, self.stages)
        boxes = [torch.zeros_like(own) for _ in others]
        arriving = [self._irecv(box, j) for box, j in zip(boxes, others, strict=True)]
        if self.rank:  # only now, so that the answer finds room for it
            self._send_all(own, others)
        arrived = [finish().tolist() for finish in arriving]
        if self.rank:
            return int(arrived[0][0]), arrived[0][1]
        greatest = max(state, *(int(other) for other, _ in arrived))
        value = arrived[-1][1]
        self._send_all(torch.tensor([greatest, value], dtype=torch.float64), others)
        return greatest, value

    def _send_all(self, box: Tensor, stages: Iterable[int]) -> None:
        """Send the same to several stages."""
        for sent in [self._isend(box, j) for j in stages]:
            sent()

    def _isend(self, message: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.isend(message, peer, tag=CONTROL), message, peer, arriving=False)

    def _irecv(self, room: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.irecv(room, peer, tag=CONTROL), room, peer, arriving=True)

    def all_gather(self, value: Any) -> list[Any]:
        """One value from each stage, on every stage, by way of the first."""
        if self.rank:
            self.send_object(value, 0)
            return self.recv_object(0)
        values = [value, *(self.recv_object(j) for j in range(1, self.stages))]
        for j in range(1, self.stages):
            self.send_object(values, j)
        return values

    def clock_offset(self, rounds: int = 8) -> float:
        """Seconds to add to this stage's clock to get the first stage's; 0 where all stages share a host.

        Of several exchanges the quickest one counts: it was delayed least, so it is off by half its length at most.
        """
        hosts = self.all_gather(socket.gethostname())
        remote = [j for j in range(self.stages) if hosts[j] != hosts[0]]
        best = (float("inf"), 0.0)
        if self.rank == 0:
            for j in (j for j in remote for _ in range(rounds)):
                self.recv_object(j)
                self.send_object(time.perf_counter(), j)
        elif self.rank in remote:
            for _ in range(rounds):
                sent = time.perf_counter()
                self.send_object(None, 0)
                theirs = self.recv_object(0)
                took = time.perf_counter() - sent
                best = min(best, (took, theirs - sent - took / 2))
        return best[1]
