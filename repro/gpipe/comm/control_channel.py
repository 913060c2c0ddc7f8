"""Small messages between the ranks of a pipeline: announcements, losses, timelines, clocks.

Every message is a Python object, and begins with a frame of fixed size that names its kind. Ranks
that make different calls find out at the first frame that does not fit. Without it, gloo would
abort the process when a message has another size than expected.
"""

import math
import pickle
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from struct import Struct
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.comm import shm
from repro.gpipe.errors import RefusedError
from repro.gpipe.runtime.heartbeats import SAME_CALLS
from repro.gpipe.runtime.status import reaching, sending, waiting

TIMEOUT = timedelta(hours=1)  # of one message; a neighbour that dies is noticed at once
_OF_GROUP = timedelta(0)  # what torch takes for the timeout of the work's group
CONTROL = 3  # gloo's tag of these messages; activations and gradients have other tags
_ROUNDS = 8  # exchanges by which a clock is compared

# Takes a state, bits of updates and a value of each rank. Returns the greatest state, the bits of
# all updates, and the last rank's value.
Vote = Callable[[int, int, float], tuple[int, int, float]]

_TRAINING, _EVALUATION, _OBJECT, _VOTE = _KINDS = [
    "a training step",
    "an evaluation",
    "an object",
    "the vote on a step",
]
_HEADER = Struct("<qq")  # of a frame: position of the kind in this list, and bytes of the object
_INLINE = 240  # bytes of the object behind it; another message has those that do not fit


def wait(
    work: dist.Work | None, tensor: Tensor, peer: int, timeout: timedelta = _OF_GROUP
) -> Tensor:
    """Wait for work on `tensor` with a rank of the world; returns the tensor."""
    if work is not None:
        with waiting(peer), reaching(peer):
            work.wait(timeout)
    return tensor


def post(size: int, peer: int, tag: int, *, pinned: bool = False) -> Callable[[], Tensor]:
    """Start to receive so many bytes over gloo; call the result to wait for them."""
    room = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
    with reaching(peer):
        return partial(wait, dist.irecv(room, peer, tag=tag), room, peer, TIMEOUT)


class ControlChannel:
    """Control channel of one rank: small messages in host memory over the default group's gloo.

    Point to point only: a subgroup would have to be made by all processes, also by those without a
    stage.
    """

    def __init__(self, ranks: int, rank: int, replica: int = 0) -> None:
        # Each waits until a message has been received. They are kept, since gloo must not lose what
        # it still sends if a step fails.
        self._untaken: list[Callable[[], object]] = []
        self.ranks, self.rank, self.replica = ranks, rank, replica
        self.is_first, self.is_last = rank == 0, rank == ranks - 1
        self._offset: float | None = None

    def world_rank(self, rank: int) -> int:
        """Rank in the world of a rank of this replica."""
        return self.replica * self.ranks + rank

    def announce(self, step: object, rank: int, *, evaluate: bool) -> None:
        """Start to announce a step to a rank; `flush` waits until it is taken."""
        self._untaken.append(self._isend(_EVALUATION if evaluate else _TRAINING, step, rank))

    def announced(self, rank: int, *, evaluate: bool) -> Any:
        """Receive what `announce` sends."""
        return self._irecv(_EVALUATION if evaluate else _TRAINING, rank)()

    def send_object(self, value: object, rank: int) -> None:
        """Send an object that can be pickled."""
        self._isend(_OBJECT, value, rank)()

    def recv_object(self, rank: int) -> Any:
        """Receive an object of `send_object`."""
        return self._irecv(_OBJECT, rank)()

    def flush(self) -> None:
        """Wait until what was started is received."""
        for wait_until_taken in self._untaken:
            wait_until_taken()
        self._untaken.clear()

    def vote(self) -> Vote:
        """Begin to receive the votes of all ranks on a step; call the result to vote.

        The first rank gathers the votes and answers.
        """
        others = range(1, self.ranks)
        # Posted before anything is sent, so that votes and answers find room.
        arriving = [self._irecv(_VOTE, j) for j in ([0] if self.rank else others)]

        def agree(state: int, updates: int, value: float) -> tuple[int, int, float]:
            if self.rank:
                self._isend(_VOTE, (state, updates, value), 0)()
                return arriving[0]()
            for vote in arriving:
                other_state, other_updates, value = vote()
                state, updates = max(state, other_state), updates | other_updates
            answer = state, updates, value
            self._untaken += [self._isend(_VOTE, answer, j) for j in others]
            return answer

        return agree

    def all_gather(self, value: Any) -> list[Any]:
        """Gather one value from each rank on every rank, by way of the first rank."""
        if self.rank:
            self.send_object(value, 0)
            return self.recv_object(0)
        values = [value, *(self.recv_object(j) for j in range(1, self.ranks))]
        for j in range(1, self.ranks):
            self.send_object(values, j)
        return values

    def gather_alike(
        self, what: str, value: Any, same: Mapping[str, object], problem: str = ""
    ) -> list[Any]:
        """Gather one value from each rank.

        Raises a RefusedError on every rank if one of them has a problem, or if what must be the
        same is not.
        """
        gathered = self.all_gather((value, same, problem))
        for rank, (_, theirs, their_problem) in enumerate(gathered):
            if their_problem:
                raise RefusedError(f"{what}: {their_problem}")
            for name, first in gathered[0][1].items():
                if repr(theirs[name]) != repr(first):  # nan is as nan
                    raise RefusedError(
                        f"{what}: {name}={theirs[name]} on rank {rank}, but {first} on rank 0; "
                        "give every rank the same, and call it equally often"
                    )
        return [value for value, *_ in gathered]

    def clock_offset(self, step: int) -> float:
        """Seconds to add to this rank's clock to get the first rank's; 0 on the same host.

        All ranks ask for it after the same steps. It is measured again each 100 steps, since clocks
        drift apart.
        """
        if self._offset is None or step % 100 == 0:
            self._offset = self._measured_offset()
        return self._offset

    def _measured_offset(self) -> float:
        """The quickest of several exchanges counts: it was delayed least.

        Its error is at most half its length.
        """
        hosts = self.all_gather(shm.boot_id())
        remote = [j for j in range(self.ranks) if hosts[j] != hosts[0]]
        if self.is_first:
            for j in (j for j in remote for _ in range(_ROUNDS)):
                self.recv_object(j)
                self.send_object(time.perf_counter(), j)
        quickest = math.inf, 0.0
        for _ in range(_ROUNDS if self.rank in remote else 0):
            sent = time.perf_counter()
            self.send_object(None, 0)
            first_clock = self.recv_object(0)
            length = time.perf_counter() - sent
            quickest = min(quickest, (length, first_clock - sent - length / 2))
        return quickest[1]

    def _isend(self, kind: str, value: object, rank: int) -> Callable[[], object]:
        """Start to send an object; call the result to wait until it is taken."""
        data = pickle.dumps(value)
        frame = _HEADER.pack(_KINDS.index(kind), len(data)) + data[:_INLINE].ljust(_INLINE)
        sends = [self._start(part, rank) for part in (frame, data[_INLINE:]) if part]
        return lambda: [wait_until_taken() for wait_until_taken in sends]

    def _start(self, data: bytes, rank: int) -> Callable[[], Tensor]:
        message, peer = torch.frombuffer(bytearray(data), dtype=torch.uint8), self.world_rank(rank)
        with reaching(peer):
            work = dist.isend(message, peer, tag=CONTROL)

        def wait_until_taken() -> Tensor:
            with sending():
                return wait(work, message, peer, TIMEOUT)

        return wait_until_taken

    def _irecv(self, kind: str, rank: int) -> Callable[[], Any]:
        """Start to receive an object of this kind; call the result to wait for it.

        It trusts the peer, a process of the same program.
        """
        peer = self.world_rank(rank)
        arriving = post(_HEADER.size + _INLINE, peer, CONTROL)

        def received() -> Any:
            frame = bytes(arriving().numpy())
            position, size = _HEADER.unpack_from(frame)
            if _KINDS[position] != kind:
                raise ValueError(
                    f"rank {self.world_rank(self.rank)} waits for {kind}, rank {peer} sent "
                    f"{_KINDS[position]}: {SAME_CALLS}"
                )
            data = frame[_HEADER.size :]
            if size > _INLINE:
                data += bytes(post(size - _INLINE, peer, CONTROL)().numpy())
            return pickle.loads(data)  # which ignores bytes behind the object

        return received
