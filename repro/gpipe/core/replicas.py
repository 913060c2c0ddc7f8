"""D copies of a pipeline (data parallelism): each rank sums its gradients with its copies'.

The gradients of a rank become final during its last backward. As soon as a bucket of them is
final, its all-reduce starts. It runs beside the rest of that backward and beside the backwards of
the ranks before.

Sparse gradients, as of nn.Embedding(sparse=True), are exchanged after the last backward. They stay
sparse, because optimizers treat the rows in them unlike others.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store  # private; imported only here
from torch.utils.hooks import RemovableHandle

from repro.gpipe.comm.control_channel import wait

BUCKET = 25 * 2**20  # bytes of gradients that are summed at once
_NO_GRADIENT, _DENSE, _SPARSE = range(3)


@cache
def group(members: tuple[int, ...], backend: str) -> Any:
    """A process group that only its members make; `new_group` would need all ranks.

    It is torch's bare ProcessGroupGloo or ProcessGroupNCCL, which the functions of
    torch.distributed do not accept. A process makes it once.

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
    """One rank of a pipeline among its D copies.

    Args:
        members: ranks of the world of all copies.
        device: where the parameters of this rank are.
    """

    def __init__(self, members: Sequence[int], device: torch.device) -> None:
        nccl = device.type == "cuda" and "nccl" in dist.get_backend_config()
        self._group = group(tuple(members), "nccl" if nccl else "gloo")
        # A sum needs every member. Each one's status says that it waits for the next member, which
        # leads to the one that is missing.
        self._next = members[(members.index(dist.get_rank()) + 1) % len(members)]
        self._device = device if nccl else torch.device("cpu")
        self._parameters: list[nn.Parameter] = []
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._buckets: list[list[nn.Parameter]] = []  # in the order in which they are summed
        self._started: list[tuple[dist.Work, Tensor]] = []  # all-reduces of the first buckets
        self._in_last_backward = False
        self.summed_bytes = 0  # handed to all-reduces so far
        self._sparse: set[nn.Parameter] = set()  # had a sparse gradient, on any replica

    def begin(self, parameters: Sequence[nn.Parameter]) -> None:
        """Before a step: set hooks on the parameters, which have no gradients yet; see `rollback`.

        The parameters may differ from those of the last step: weight norm, pruning and adapters
        replace or add some.
        """
        self._in_last_backward = False
        self._parameters = list(parameters)
        listed = set(parameters)
        for parameter in self._hooks.keys() - listed:
            self._hooks.pop(parameter).remove()
            self._sparse.discard(parameter)
        for parameter in parameters:
            if parameter.requires_grad and parameter not in self._hooks:
                self._hooks[parameter] = parameter.register_post_accumulate_grad_hook(self._ready)

    def last_backward(self, final: Iterable[nn.Parameter] = ()) -> None:
        """Before the last backward: from now on a gradient is final when it was added to.

        Args:
            final: parameters whose gradients are final already: those of this rank's other stages.
        """
        dense = [p for p in reversed(self._parameters) if p.requires_grad and p not in self._sparse]
        self._buckets = list(_buckets(dense))
        self._bucket_of = {p: n for n, bucket in enumerate(self._buckets) for p in bucket}
        self._missing = [len(bucket) for bucket in self._buckets]  # gradients that are not final
        for parameter in final:
            if parameter in self._bucket_of:
                self._missing[self._bucket_of[parameter]] -= 1
        self._started = []
        self._in_last_backward = True

    def finish(self) -> None:
        """Wait until the gradients are the sums over all replicas."""
        self._in_last_backward = False
        self._start_all_reduces(everything=True)
        for bucket, (work, flat) in zip(self._buckets, self._started, strict=True):
            wait(work, flat, self._next)
            sizes = [*(p.numel() for p in bucket), len(bucket), len(bucket)]
            *sums, exist, sparse = flat.to(bucket[0].device).split(sizes)
            for parameter, gradient, exists, is_sparse in zip(
                bucket, sums, exist, sparse.tolist(), strict=True
            ):
                if is_sparse:
                    self._sparse.add(parameter)
                elif parameter.grad is not None:
                    parameter.grad.copy_(gradient.view_as(parameter))
                elif exists:  # not part of the graph here, but of another replica's
                    parameter.grad = gradient.view_as(parameter).clone()
        self._started = []
        self._sum_sparse([p for p in self._parameters if p.requires_grad and p in self._sparse])

    def total(self, value: float) -> float:
        """The sum of a number over all replicas."""
        total = torch.tensor([value], dtype=torch.float64, device=self._device)
        wait(self._group.allreduce([total]), total, self._next)
        return total.item()

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of the same size from each replica."""
        sent = tensor.to(self._device)
        received = [torch.empty_like(sent) for _ in range(self._group.size())]
        wait(self._group.allgather([received], [sent]), sent, self._next)
        return [part.to(tensor.device) for part in received]

    def _ready(self, parameter: nn.Parameter) -> None:
        """Hook of a parameter, called when its gradient was added to."""
        if self._in_last_backward and parameter not in self._sparse:
            bucket = self._bucket_of[parameter]
            assert self._missing[bucket], (
                "a gradient was added to twice in one backward (a reentrant checkpoint?)"
            )
            self._missing[bucket] -= 1
            self._start_all_reduces()

    @torch.no_grad()
    def _start_all_reduces(self, *, everything: bool = False) -> None:
        """Sum the next buckets that are final, in the same order on every replica.

        Behind the gradients of a bucket stand, for each parameter, whether it has a gradient and
        whether that is sparse.
        """
        while len(self._started) < len(self._buckets):
            n = len(self._started)
            if self._missing[n] and not everything:
                return
            bucket = self._buckets[n]
            sparse = [p.grad is not None and p.grad.is_sparse for p in bucket]
            gradients = [
                torch.zeros_like(p) if p.grad is None or is_sparse else p.grad
                for p, is_sparse in zip(bucket, sparse, strict=True)
            ]
            exist = gradients[0].new_tensor([p.grad is not None for p in bucket])
            flat = torch.cat(
                [*(g.reshape(-1) for g in gradients), exist, exist.new_tensor(sparse)]
            ).to(self._device)
            self.summed_bytes += flat.nbytes
            self._started.append((self._group.allreduce([flat]), flat))

    @torch.no_grad()
    def _sum_sparse(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients that are sparse on some replica; the sums are the same on every replica."""
        if not parameters:
            return
        gradients: list[Tensor | None] = []
        forms: list[tuple[int, int, int]] = []  # see `_form`
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is not None and gradient.is_sparse:
                gradient = gradient.coalesce()
            gradients.append(gradient)
            forms.append(_form(gradient))
        of_replicas = torch.stack(self.gather(torch.tensor(forms))).unbind(1)
        for parameter, gradient, replicas in zip(parameters, gradients, of_replicas, strict=True):
            kinds, dimensions, rows = replicas.t().tolist()
            if all(kind == _NO_GRADIENT for kind in kinds):
                continue
            indexed = {dimension for dimension in dimensions if dimension}
            if _DENSE in kinds or len(indexed) > 1:  # the sum is dense, as autograd's is
                dense = torch.zeros_like(parameter) if gradient is None else gradient.to_dense()
                parameter.grad = torch.stack(self.gather(dense)).sum(0)
            else:
                parameter.grad = self._sum_of_rows(parameter, gradient, indexed.pop(), rows)

    def _sum_of_rows(
        self, like: Tensor, gradient: Tensor | None, dimensions: int, rows: Sequence[int]
    ) -> Tensor:
        """The sum of sparse gradients; every replica sends as many rows as the longest has."""
        most = max(*rows, 1)
        indices = torch.zeros(dimensions, most, dtype=torch.int64, device=like.device)
        values = like.new_zeros(most, *like.shape[dimensions:])
        if gradient is not None:
            indices[:, : gradient._nnz()] = gradient.indices()
            values[: gradient._nnz()] = gradient.values()
        # Without the padding: a row that is listed counts as used, even if its gradient is zero.
        all_indices = torch.cat(
            [i[:, :n] for i, n in zip(self.gather(indices), rows, strict=True)], dim=1
        )
        all_values = torch.cat([v[:n] for v, n in zip(self.gather(values), rows, strict=True)])
        return torch.sparse_coo_tensor(
            all_indices, all_values, like.shape, check_invariants=False
        ).coalesce()


def _form(gradient: Tensor | None) -> tuple[int, int, int]:
    """(kind, indexed dimensions, rows) of a gradient; the last two are 0 unless it is sparse."""
    if gradient is None:
        return _NO_GRADIENT, 0, 0
    if not gradient.is_sparse:
        return _DENSE, 0, 0
    return _SPARSE, gradient.sparse_dim(), gradient._nnz()


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterable[list[nn.Parameter]]:
    """Consecutive parameters of one dtype, of at most `BUCKET` bytes unless it is one."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(p.nbytes for p in bucket) + parameter.nbytes > BUCKET
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
