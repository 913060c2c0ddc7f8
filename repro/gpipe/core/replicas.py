"""D copies of a pipeline (data parallelism): what stage j of every copy has to agree on.

The gradients of a stage are final during its last backward: whenever a bucket of them is, its
all-reduce starts and runs beside what is left of that backward, and beside the backwards of the
stages before. Sparse gradients, as of nn.Embedding(sparse=True), are exchanged after it, and stay
sparse: optimizers treat the rows in them unlike others.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

# private: the one place that imports it
from torch.distributed.distributed_c10d import _get_default_store
from torch.utils.hooks import RemovableHandle

from repro.gpipe.comm.control_channel import wait

BUCKET = 25 * 2**20  # bytes of gradients that are summed at once


@cache
def group(members: tuple[int, ...], backend: str) -> Any:
    """A process group that only its members make, once in the life of a process; `new_group` would need everybody.

    It is torch's bare ProcessGroupGloo or ProcessGroupNCCL, which torch.distributed's functions do
    not take.

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
        device: where the parameters of this stage are.
    """

    def __init__(self, members: Sequence[int], device: torch.device) -> None:
        nccl = device.type == "cuda" and "nccl" in dist.get_backend_config()
        self._group = group(tuple(members), "nccl" if nccl else "gloo")
        # A sum needs every member. Each says that it waits for the next one, so the one that is
        # missing is found.
        self._next = members[(members.index(dist.get_rank()) + 1) % len(members)]
        self._device = device if nccl else torch.device("cpu")
        self._parameters: list[nn.Parameter] = []
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._order: list[list[nn.Parameter]] = []
        self._works: list[tuple[dist.Work, Tensor]] = []
        self._armed = False
        self._sparse: set[nn.Parameter] = set()  # seen to have a sparse gradient, on any replica

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """Before a step, whose gradients are the only ones that these parameters have; see `rollback`.

        The parameters may be others than in the last step: weight norm, pruning and adapters
        replace or add some.
        """
        self._armed = False
        self._parameters = list(parameters)
        listed = set(parameters)
        for parameter in self._hooks.keys() - listed:
            self._hooks.pop(parameter).remove()
            self._sparse.discard(parameter)
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._ready)

    def last_backward(self) -> None:
        """From here on a gradient that was added to is final."""
        dense = [p for p in reversed(self._parameters) if p.requires_grad and p not in self._sparse]
        self._order = list(_buckets(dense))
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
            sizes = [*(p.numel() for p in bucket), len(bucket), len(bucket)]
            *parts, had, sparse = flat.to(bucket[0].device).split(sizes)
            for parameter, part, elsewhere, is_sparse in zip(
                bucket, parts, had, sparse.tolist(), strict=True
            ):
                if is_sparse:
                    self._sparse.add(parameter)
                elif parameter.grad is not None:
                    parameter.grad.copy_(part.view_as(parameter))
                elif elsewhere:  # no part of the graph here, but of another replica's
                    parameter.grad = part.view_as(parameter).clone()
        self._works = []
        self._sum_sparse([p for p in self._parameters if p.requires_grad and p in self._sparse])

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
        if self._armed and parameter not in self._sparse:
            bucket = self._bucket[parameter]
            assert self._missing[bucket], (
                "a gradient was added to twice in one backward (a reentrant checkpoint?)"
            )
            self._missing[bucket] -= 1
            self._start()

    @torch.no_grad()
    def _start(self, *, everything: bool = False) -> None:
        """Sum the next buckets that are final, in the same order on every replica."""
        while len(self._works) < len(self._order) and (
            everything or not self._missing[len(self._works)]
        ):
            bucket = self._order[len(self._works)]
            sparse = [p.grad is not None and p.grad.is_sparse for p in bucket]
            grads = [
                torch.zeros_like(p) if p.grad is None or is_sparse else p.grad
                for p, is_sparse in zip(bucket, sparse, strict=True)
            ]
            had = grads[0].new_tensor([p.grad is not None for p in bucket])
            flat = torch.cat([*(g.reshape(-1) for g in grads), had, had.new_tensor(sparse)]).to(
                self._device
            )
            self._works.append((self._group.allreduce([flat]), flat))

    @torch.no_grad()
    def _sum_sparse(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients that are sparse on some replica; the sums are the same on every replica."""
        if not parameters:
            return
        own = [
            p.grad.coalesce() if p.grad is not None and p.grad.is_sparse else p.grad
            for p in parameters
        ]
        # What each replica has: 0 nothing, 1 a dense gradient, 2 a sparse one with so many indexed
        # dimensions and rows.
        kinds = [
            (0, 0, 0) if g is None else (2, g.sparse_dim(), g._nnz()) if g.is_sparse else (1, 0, 0)
            for g in own
        ]
        of_replicas = torch.stack(self.gather(torch.tensor(kinds))).unbind(1)
        for parameter, gradient, found in zip(parameters, own, of_replicas, strict=True):
            kind, dimensions, rows = found.t().tolist()
            if not any(kind):
                continue
            indexed = {n for n in dimensions if n}
            if 1 in kind or len(indexed) > 1:  # the sum is dense, as autograd's is
                whole = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
                parameter.grad = torch.stack(self.gather(whole)).sum(0)
            else:
                parameter.grad = self._joined(parameter, gradient, indexed.pop(), rows)

    def _joined(
        self, like: Tensor, gradient: Tensor | None, dimensions: int, rows: Sequence[int]
    ) -> Tensor:
        """The sum of sparse gradients; every replica sends as many rows as the longest has."""
        room = max(*rows, 1)
        indices = torch.zeros(dimensions, room, dtype=torch.int64, device=like.device)
        values = like.new_zeros(room, *like.shape[dimensions:])
        if gradient is not None:
            indices[:, : gradient._nnz()] = gradient.indices()
            values[: gradient._nnz()] = gradient.values()
        # Without the padding: a row counts as used by being there, even where its gradient is zero.
        all_indices = torch.cat(
            [i[:, :n] for i, n in zip(self.gather(indices), rows, strict=True)], dim=1
        )
        all_values = torch.cat([v[:n] for v, n in zip(self.gather(values), rows, strict=True)])
        return torch.sparse_coo_tensor(
            all_indices, all_values, like.shape, check_invariants=False
        ).coalesce()


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
