"""D copies of a pipeline (data parallelism): what stage j of every copy has to agree on.

The gradients of a stage are final during its last backward: whenever a bucket of them is, its all-reduce starts and
runs beside what is left of that backward, and beside the backwards of the stages before.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store  # private: the one place that imports it

from repro.gpipe.wire import wait

BUCKET = 25 * 2**20  # bytes of gradients that are summed at once


@cache
def group(members: tuple[int, ...], backend: str) -> Any:
    """A process group that only its members make, once in the life of a process; `new_group` would need everybody.

    It is torch's bare ProcessGroupGloo or ProcessGroupNCCL, which torch.distributed's functions do not take.

    Args:
        members: ranks of the world.
        backend: "nccl" or "gloo".
    """
    store = dist.PrefixStore(f"gpipe/{backend}/{members}", _get_default_store())
    rank = members.index(dist.get_rank())
    if backend == "nccl":
        return dist.ProcessGroupNCCL(store, rank, len(members), dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(store, rank, len(members), dist.default_pg_timeout)


class Replicas:
    """One stage among its D copies.

    Args:
        members: their ranks of the world.
        parameters: of this stage.
        device: where they are.
    """

    def __init__(self, members: Sequence[int], parameters: Iterable[nn.Parameter], device: torch.device) -> None:
        nccl = device.type == "cuda" and "nccl" in dist.get_backend_config()
        self._group = group(tuple(members), "nccl" if nccl else "gloo")
        # A sum needs every member. Each says that it waits for the next one, so the one that is missing is found.
        self._next = members[(members.index(dist.get_rank()) + 1) % len(members)]
        self._device = device if nccl else torch.device("cpu")
        self._parameters = list(parameters)
        self._order: list[list[nn.Parameter]] = []
        self._works: list[tuple[dist.Work, Tensor]] = []
        self._armed = False
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def begin(self) -> None:
        """Before a step, whose gradients are the only ones that the parameters have; see `undo`."""
        self._armed = False

    def last_backward(self) -> None:
        """From here on a gradient that was added to is final."""
        self._order = list(_buckets([p for p in reversed(self._parameters) if p.requires_grad]))
        self._bucket = {p: n for n, bucket in enumerate(self._order) for p in bucket}
        self._missing = [len(bucket) for bucket in self._order]
        self._works = []
        self._armed = True

    def finish(self) -> None:
        """Wait until the gradients are the sums over all replicas."""
        self._armed = False
        self._start(everything=True)
        for bucket, (work, flat) in zip(self._order, self._works, strict=True):
            wait(work, flat, self._next)
            *parts, had = flat.to(bucket[0].device).split([*(p.numel() for p in bucket), len(bucket)])
            for parameter, part, elsewhere in zip(bucket, parts, had, strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter))
                elif elsewhere:  # no part of the graph here, but of another replica's
                    parameter.grad = part.view_as(parameter).clone()
        self._works = []

    def total(self, value: float) -> float:
        """The sum of a number over all replicas."""
        box = torch.tensor([value], dtype=torch.float64, device=self._device)
        wait(self._group.allreduce([box]), box, self._next)
        return box.item()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of the same size from each replica."""
        own = tensor.to(self._device)
        boxes = [torch.empty_like(own) for _ in range(self._group.size())]
        wait(self._group.allgather([boxes], [own]), own, self._next)
        return [box.to(tensor.device) for box in boxes]

    def _ready(self, parameter: nn.Parameter) -> None:
        if self._armed:
            bucket = self._bucket[parameter]
            assert self._missing[bucket], "a gradient was added to twice in one backward (a reentrant checkpoint?)"
            self._missing[bucket] -= 1
            self._start()

    @torch.no_grad()
    def _start(self, *, everything: bool = False) -> None:
        """Sum the next buckets that are final, in the same order on every replica."""
        while len(self._works) < len(self._order) and (everything or not self._missing[len(self._works)]):
            bucket = self._order[len(self._works)]
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
            had = grads[0].new_tensor([p.grad is not None for p in bucket])
            flat = torch.cat([*(g.reshape(-1) for g in grads), had]).to(self._device)
            self._works.append((self._group.allreduce([flat]), flat))


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Runs of parameters of one type, a bucket's size each."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(p.nbytes for p in bucket) + parameter.nbytes > BUCKET
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
