"""Small messages between the stages of a pipeline: announcements, losses, timelines, clocks.

Every message begins with a header of one size, which names its kind. Ranks that make different
calls therefore find out at the first message that does not fit: gloo would abort the process over a
message of another size.
"""

import pickle
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.runtime.heartbeats import SAME_CALLS
from repro.gpipe.runtime.status import reaching, waiting

CONTROL = 3  # the tag that keeps them apart from activations and gradients

# Kind of a message -> its header: the kind's position in this table, then numbers, 32 bytes in all.
_HEADERS = {
    "a training step": Struct("<qqqq"),  # signature, whether it is new, N
    "an evaluation": Struct("<qqqq"),  # the same
    "an object": Struct("<qqqq"),  # bytes that follow, 0, 0
    "the loss": Struct("<qddd"),  # loss, 0, 0
    "the vote on a step": Struct("<qddd"),  # how it went, what becomes of the gradients, loss
}
_KINDS = list(_HEADERS)


def wait(work: dist.Work | None, tensor: Tensor, peer: int, control: str = "") -> Tensor:
    """Wait for what is sent to or received from a rank of the world; the tensor, which is kept until then."""
    if work is not None:
        with waiting(peer, tensor.nbytes, control), reaching(peer):
            work.wait()
    return tensor


class Wire:
    """Small messages between the stages of a pipeline, in host memory over the default group's gloo.

    Point to point only: a subgroup would have to be made by all processes, also by those that have
    no stage.

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

    def announce(
        self, numbers: Sequence[int], stage: int, *, evaluate: bool
    ) -> Callable[[], object]:
        """Start to send three integers that announce a step; call the result to wait until they are taken."""
        return self._isend(_header(_step(evaluate=evaluate), *numbers), stage)

    def announced(self, stage: int, *, evaluate: bool) -> tuple[int, int, int]:
        """The counterpart of `announce`.

        Raises:
            ValueError: one line, if that stage announces another kind of step, or does something
                else.
        """
        a, b, c = self._recv(_step(evaluate=evaluate), stage)()
        return a, b, c

    def send_object(self, value: object, stage: int) -> None:
        """Send anything that can be pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        self._isend(_header("an object", data.numel(), 0, 0), stage)()
        self._isend(data, stage)()

    def recv_object(self, stage: int) -> Any:
        """The counterpart of `send_object`; it trusts its peer, a process of the same program.

        Raises:
            ValueError: one line, if that stage sends something else.
        """
        size = self._recv("an object", stage)()[0]
        data = self._irecv(torch.zeros(size, dtype=torch.uint8), stage)()
        return pickle.loads(bytes(data.numpy()))

    def from_last(self, value: float) -> float:
        """The last stage's value on every stage."""
        if self.rank < self.stages - 1:
            return self._recv("the loss", self.stages - 1)()[0]
        self._send_all(_header("the loss", value, 0.0, 0.0), range(self.stages - 1))
        return value

    def agree(self, state: int, updates: int, value: float) -> tuple[int, int, float]:
        """The greatest state of any stage, the bits of `updates` that any stage has set, and the last stage's value.

        On every stage, by way of the first.
        """
        if self.stages == 1:
            return state, updates, value
        kind = "the vote on a step"
        others = [0] if self.rank else range(1, self.stages)
        arriving = [self._recv(kind, j) for j in others]
        if self.rank:  # only now, so that the answer finds room for it
            self._send_all(_header(kind, state, updates, value), others)
        votes = [arrived() for arrived in arriving]
        if not self.rank:
            for other_state, other_updates, _ in votes:
                state, updates = max(state, int(other_state)), updates | int(other_updates)
            votes = [(state, updates, votes[-1][2])]
            self._send_all(_header(kind, *votes[0]), others)
        return int(votes[0][0]), int(votes[0][1]), votes[0][2]

    def _send_all(self, box: Tensor, stages: Iterable[int]) -> None:
        """Send the same to several stages."""
        for sent in [self._isend(box, j) for j in stages]:
            sent()

    def _isend(self, message: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.isend(message, peer, tag=CONTROL), message, peer, "send")

    def _irecv(self, room: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.irecv(room, peer, tag=CONTROL), room, peer, "receive")

    def _recv(self, kind: str, stage: int) -> Callable[[], Sequence[Any]]:
        """Start to receive a header of this kind; call the result to wait for its numbers."""
        arriving = self._irecv(torch.zeros(_HEADERS[kind].size, dtype=torch.uint8), stage)

        def numbers() -> Sequence[Any]:
            data = bytes(arriving().numpy())
            found = _KINDS[int.from_bytes(data[:8], "little")]
            if found != kind:
                own, theirs = self.world_rank(self.rank), self.world_rank(stage)
                raise ValueError(
                    f"rank {own} waits for {kind}, rank {theirs} sent {found}: {SAME_CALLS}"
                )
            return _HEADERS[kind].unpack(data)[1:]

        return numbers

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

        Of several exchanges the quickest one counts: it was delayed least, so it is off by half its
        length at most.
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


def _step(*, evaluate: bool) -> str:
    return "an evaluation" if evaluate else "a training step"


def _header(kind: str, *numbers: float) -> Tensor:
    return torch.frombuffer(
        bytearray(_HEADERS[kind].pack(_KINDS.index(kind), *numbers)), dtype=torch.uint8
    )
