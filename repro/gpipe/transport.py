"""Tensors between neighbouring stages, over torch.distributed.

Activations go from stage j to j+1 and gradients back, each direction in the order in which the sender's schedule
produces them. Receives are posted ahead; sends are never waited for inside a step. gloo tells the two directions
apart by tag; NCCL has one communicator for each neighbour and direction, so that neither blocks the other. Stages
that share a GPU, or a backend without GPU support, go through host memory.
"""

import queue
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor

from repro.gpipe.microbatch import Slot, Tree, flatten, leaves, unflatten
from repro.gpipe.wire import Wire

CONSTANTS = (Slot, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
ACTIVATION, GRADIENT = 1, 2  # tags; see also wire.CONTROL


@dataclass(frozen=True)
class TensorMeta:
    """Everything a receiver must know to make room for a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorMeta":
        """Strides survive the crossing where the tensor is dense, so that a neighbour computes the same bits."""
        stride = tensor.stride() if _dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        return cls(tuple(tensor.shape), tuple(stride), tensor.dtype, tensor.requires_grad)


@dataclass(frozen=True)
class MessageMeta:
    """The tensors of one message and the structure they stand in."""

    tensors: tuple[TensorMeta, ...]
    skeleton: Tree

    @classmethod
    def of(cls, tree: Tree) -> "MessageMeta":
        """Describe what will be sent.

        Raises:
            ValueError: if the structure holds an object that is neither a tensor nor a plain constant.
        """
        tensors, skeleton = flatten(tree)
        for leaf in leaves(skeleton):
            if not isinstance(leaf, CONSTANTS):
                raise ValueError(
                    f"a layer returned a {type(leaf).__name__} at a stage boundary: only tensors, numbers, strings and "
                    "None, in tuples, lists or dicts, can cross; unpack it, or choose a balance that keeps it inside"
                )
        return cls(tuple(TensorMeta.of(t) for t in tensors), skeleton)

    def fits(self, other: "MessageMeta") -> bool:
        """Whether shapes, strides, types and constants agree."""
        ours, theirs = ([(m.shape, m.stride, m.dtype) for m in meta.tensors] for meta in (self, other))
        return ours == theirs and self.skeleton == other.skeleton

    def gradients(self) -> "MessageMeta":
        """The message that comes back: a gradient for each tensor that requires one."""
        return MessageMeta(tuple(m for m in self.tensors if m.requires_grad), None)


def _dense(tensor: Tensor) -> bool:
    """Whether the tensor fills its memory without gaps or overlaps, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense(tensor: Tensor) -> Tensor:
    """The tensor, or a contiguous copy where it has gaps or overlaps."""
    return tensor if _dense(tensor) else tensor.contiguous()


def _memory(tensor: Tensor) -> Tensor:
    """A dense tensor's elements as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


@cache
def nccl_pairs(world: int) -> dict[tuple[int, int], dist.ProcessGroup]:
    """One communicator for each neighbour and direction; every rank of the world must call this at the same point."""
    ordered = [pair for a in range(world - 1) for pair in ((a, a + 1), (a + 1, a))]
    return {pair: dist.new_group(sorted(pair), backend="nccl") for pair in ordered}  # pyright: ignore[reportReturnType]


class Link:
    """One direction between this stage and a neighbour.

    Args:
        here: this process's global rank.
        peer: the neighbour's.
        tag: ACTIVATION or GRADIENT.
        device: where tensors live here.
        outgoing: whether we send.
    """

    def __init__(self, here: int, peer: int, tag: int, device: torch.device, *, outgoing: bool) -> None:
        self.peer = peer
        self.tag = tag
        self.device = device
        backend = "nccl" if device.type == "cuda" and "nccl" in dist.get_backend_config() else "gloo"
        self.staged = device.type != "cpu" and backend == "gloo"
        direction = (here, peer) if outgoing else (peer, here)
        self.group = nccl_pairs(dist.get_world_size())[direction] if backend == "nccl" else None
        self.overlapped = backend == "gloo"

    def isend(self, tensor: Tensor) -> tuple[dist.Work | None, Tensor]:
        """Start to send a tensor; it must stay alive and unchanged until the work is done."""
        source = tensor.detach()
        source = _memory(dense(source))
        if self.staged:
            source = source.cpu()
        return dist.isend(source, self.peer, group=self.group, tag=self.tag), source

    def irecv(self, meta: TensorMeta) -> tuple[dist.Work | None, Tensor]:
        """Make room for a tensor and start to receive it."""
        where = torch.device("cpu") if self.staged else self.device
        room = torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=where)
        return dist.irecv(_memory(room), self.peer, group=self.group, tag=self.tag), room

    def finish(self, work: dist.Work | None, room: Tensor) -> Tensor:
        """Wait for a receive; the tensor on this stage's device."""
        if work is not None:
            work.wait()
        return room.to(self.device) if self.staged else room


class Inbox:
    """The messages of one step from one neighbour.

    Args:
        link: where they come from.
        order: micro-batches in the order in which the neighbour sends them.
        metas: micro-batch -> what its message holds; may be filled while the step runs.
        learn_from: where each message's description comes from first, to be put into `metas`; None if they are known.
        ahead: receives to keep posted; each one occupies memory.
    """

    def __init__(
        self,
        link: Link,
        order: Sequence[int],
        metas: dict[int, MessageMeta],
        learn_from: Wire | None = None,
        ahead: int = 2,
    ) -> None:
        self.link = link
        self.metas = metas
        self._learn_from = learn_from
        self._ahead = ahead
        self._todo = deque(order)
        self._posted: deque[tuple[int, list[tuple[dist.Work | None, Tensor]]]] = deque()
        self._arrived: dict[int, list[Tensor]] = {}
        self.post()

    def post(self) -> None:
        """Post the next receives whose shapes are known."""
        while self._todo and self._todo[0] in self.metas and len(self._posted) < self._ahead:
            i = self._todo.popleft()
            self._posted.append((i, [self.link.irecv(m) for m in self.metas[i].tensors]))

    def take(self, i: int) -> list[Tensor]:
        """Wait for the message of micro-batch i."""
        while i not in self._arrived:
            if self._learn_from is not None and not self._posted:
                meta = self._learn_from.recv_object(self.link.peer)
                assert isinstance(meta, MessageMeta)
                self.metas[self._todo[0]] = meta
            self.post()
            j, receives = self._posted.popleft()
            self._arrived[j] = [self.link.finish(*r) for r in receives]
            self.post()
        return self._arrived.pop(i)

    def take_tree(self, i: int) -> Tree:
        """The message as it was sent; members that require a gradient are leaves that do."""
        tensors = self.take(i)
        meta = self.metas[i]
        leaves = [t.requires_grad_(m.requires_grad) for t, m in zip(tensors, meta.tensors, strict=True)]
        return unflatten(leaves, meta.skeleton)


class Outbox:
    """Keeps what is being sent alive and lets go of it as soon as it is gone.

    Waiting belongs to a thread of its own: the compute thread never waits for a send inside a step.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[dist.Work, Tensor] | threading.Event | None] = queue.SimpleQueue()
        self._late: list[tuple[dist.Work, Tensor]] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._reap, name="gpipe-outbox", daemon=True)
        self._thread.start()

    def send(self, link: Link, tensors: Sequence[Tensor]) -> None:
        """Start to send tensors in order."""
        for tensor in tensors:
            work, source = link.isend(tensor)
            if work is None:
                continue
            if link.overlapped:
                self._queue.put((work, source))
            else:  # waiting for NCCL makes a stream wait, so only what is gone is let go of
                self._late = [*(late for late in self._late if not late[0].is_completed()), (work, source)]

    def flush(self) -> None:
        """Wait until everything is sent; raises what a send raised."""
        for work, _ in self._late:
            work.wait()
        self._late.clear()
        done = threading.Event()
        self._queue.put(done)
        done.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def _reap(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                item[0].wait()
            except BaseException as error:
                self._error = error
            del item
