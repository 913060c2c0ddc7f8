"""Small messages between the stages of a pipeline: announcements, losses, timelines, clocks.

Every message begins with a header of fixed size that names its kind. Ranks that make different
calls find out at the first header that does not fit. Without it, gloo would abort the process when
a message has another size than expected.
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

CONTROL = 3  # gloo's tag of these messages; activations and gradients have other tags

_HEADER = Struct("<qddd")  # position of the kind in this list, then numbers
_KINDS = [
    "a training step",  # N, or 0 if the inputs are refused
    "an evaluation",  # the same
    "an object",  # bytes that follow
    "the loss",
    "the vote on a step",  # see `agree`
]


def wait(work: dist.Work | None, tensor: Tensor, peer: int, control: str = "") -> Tensor:
    """Wait for a send or receive of `tensor` with a rank of the world; returns the tensor."""
    if work is not None:
        with waiting(peer, tensor.nbytes, control), reaching(peer):
            work.wait()
    return tensor


class ControlChannel:
    """Control channel of one rank: small messages in host memory over the default group's gloo.

    Point to point only: a subgroup would have to be made by all processes, also by those without a
    stage. What is called a stage here is a rank, which may hold several.
    """

    def __init__(self, stages: int, rank: int, replica: int = 0) -> None:
        self.stages = stages
        self.rank = rank
        self.replica = replica

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first stage of its replica."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last stage of its replica."""
        return self.rank == self.stages - 1

    def world_rank(self, stage: int) -> int:
        """Rank in the world of a stage of this replica."""
        return self.replica * self.stages + stage

    def announce(self, examples: int, stage: int, *, evaluate: bool) -> Callable[[], object]:
        """Start to announce a step to a stage; call the result to wait until it is taken."""
        return self._isend(_header(_step(evaluate=evaluate), examples), stage)

    def announced(self, stage: int, *, evaluate: bool) -> int:
        """Receive what `announce` sends."""
        return int(self._recv(_step(evaluate=evaluate), stage)()[0])

    def send_object(self, value: object, stage: int) -> None:
        """Send an object that can be pickled."""
        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        header_taken = self._isend(_header("an object", data.numel()), stage)
        data_taken = self._isend(data, stage)
        header_taken()
        data_taken()

    def recv_object(self, stage: int) -> Any:
        """Receive an object of `send_object`; trusts the peer, a process of the same program."""
        size = int(self._recv("an object", stage)()[0])
        data = self._irecv(torch.zeros(size, dtype=torch.uint8), stage)()
        return pickle.loads(bytes(data.numpy()))

    def from_last(self, value: float) -> float:
        """Send the last stage's value to every stage; returns that value."""
        if self.rank < self.stages - 1:
            return self._recv("the loss", self.stages - 1)()[0]
        self._send_all(_header("the loss", value), range(self.stages - 1))
        return value

    def agree(self, state: int, updates: int, value: float) -> tuple[int, int, float]:
        """Combine the votes of all stages on a step: the first stage gathers them and answers."""
        if self.stages == 1:
            return state, updates, value
        kind = "the vote on a step"
        if self.rank:
            # The receive is posted before the send, so that the answer finds room.
            answer = self._recv(kind, 0)
            self._send_all(_header(kind, state, updates, value), [0])
            agreed, flags, value = answer()
            return int(agreed), int(flags), value
        others = range(1, self.stages)
        for vote in [self._recv(kind, j) for j in others]:
            other_state, other_updates, value = vote()
            state, updates = max(state, int(other_state)), updates | int(other_updates)
        self._send_all(_header(kind, state, updates, value), others)
        return state, updates, value

    def _send_all(self, message: Tensor, stages: Iterable[int]) -> None:
        """Send the same message to several stages, and wait for all sends."""
        for wait_for_send in [self._isend(message, j) for j in stages]:
            wait_for_send()

    def _isend(self, message: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.isend(message, peer, tag=CONTROL), message, peer, "send")

    def _irecv(self, room: Tensor, stage: int) -> Callable[[], Tensor]:
        peer = self.world_rank(stage)
        with reaching(peer):
            return partial(wait, dist.irecv(room, peer, tag=CONTROL), room, peer, "receive")

    def _recv(self, kind: str, stage: int) -> Callable[[], Sequence[float]]:
        """Start to receive a header of this kind; call the result to wait for its numbers."""
        arriving = self._irecv(torch.zeros(_HEADER.size, dtype=torch.uint8), stage)

        def received() -> Sequence[float]:
            position, *numbers = _HEADER.unpack(bytes(arriving().numpy()))
            if _KINDS[position] != kind:
                raise ValueError(
                    f"rank {self.world_rank(self.rank)} waits for {kind}, rank "
                    f"{self.world_rank(stage)} sent {_KINDS[position]}: {SAME_CALLS}"
                )
            return numbers

        return received

    def all_gather(self, value: Any) -> list[Any]:
        """Gather one value from each stage on every stage, by way of the first stage."""
        if self.rank:
            self.send_object(value, 0)
            return self.recv_object(0)
        values = [value, *(self.recv_object(j) for j in range(1, self.stages))]
        for j in range(1, self.stages):
            self.send_object(values, j)
        return values

    def clock_offset(self, rounds: int = 8) -> float:
        """Seconds to add to this stage's clock to get the first stage's; 0 on the same host.

        The quickest of several exchanges counts: it was delayed least, and its error is at most
        half its length.
        """
        hosts = self.all_gather(socket.gethostname())
        remote = [j for j in range(self.stages) if hosts[j] != hosts[0]]
        if self.rank == 0:
            for j in remote:
                for _ in range(rounds):
                    self.recv_object(j)
                    self.send_object(time.perf_counter(), j)
        if self.rank not in remote:
            return 0.0
        exchanges = []
        for _ in range(rounds):
            sent = time.perf_counter()
            self.send_object(None, 0)
            first_clock = self.recv_object(0)
            length = time.perf_counter() - sent
            exchanges.append((length, first_clock - sent - length / 2))
        return min(exchanges)[1]


def _step(*, evaluate: bool) -> str:
    return "an evaluation" if evaluate else "a training step"


def _header(kind: str, *numbers: float) -> Tensor:
    three = [*numbers, 0.0, 0.0][:3]
    return torch.frombuffer(bytearray(_HEADER.pack(_KINDS.index(kind), *three)), dtype=torch.uint8)
