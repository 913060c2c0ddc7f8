"""D copies of a pipeline (data parallelism): each rank sums its gradients with its copies'.

A rank does so after its last backward, while ranks before it still run theirs.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store  # private; imported only here

from repro.gpipe.comm.control_channel import ControlChannel, wait
from repro.gpipe.comm.message import elements

BUCKET = 25 * 2**20  # bytes of gradients that are summed at once


@cache
def group(members: tuple[int, ...], backend: str) -> Any:
    """A process group that only its members make; `new_group` would need all ranks.

    It is torch's bare ProcessGroupGloo or ProcessGroupNCCL, which the functions of
    torch.distributed do not accept. A process makes it once.
    """
    store = dist.PrefixStore(f"gpipe/{backend}/{members}", _get_default_store())
    rank = members.index(dist.get_rank())
    if backend == "nccl":
        return dist.ProcessGroupNCCL(store, rank, len(members), dist.ProcessGroupNCCL.Options())
    return dist.ProcessGroupGloo(store, rank, len(members), dist.default_pg_timeout)


class Replicas:
    """One rank of a pipeline among its D copies."""

    def __init__(self, members: Sequence[int], device: torch.device) -> None:
        nccl = device.type == "cuda" and "nccl" in dist.get_backend_config()
        self._group = group(tuple(members), "nccl" if nccl else "gloo")
        self._members = members
        # A sum needs every member. Each one's status shows that it waits for the next member, which
        # leads to the one that is missing.
        self._next = members[(members.index(dist.get_rank()) + 1) % len(members)]
        self._device = device if nccl else torch.device("cpu")
        self._summed = 0  # bytes that were handed to all-reduces so far

    @torch.no_grad()
    def start_equal(self, module: nn.Module, all_ranks: ControlChannel) -> None:
        """Give this rank's layers the values that those of the first replica have."""
        named = [*chain(module.named_parameters(), module.named_buffers())]
        forms = repr([(name, tuple(t.shape), t.dtype, t.layout) for name, t in named])
        of_all = all_ranks.all_gather(forms)
        if any(of_all[member] != forms for member in self._members):
            raise ValueError(
                "layers: the replicas of a stage have other parameters or buffers each; build the "
                "same layers on every rank"
            )
        for _, tensor in named:
            if tensor.layout == torch.strided:
                value = tensor.detach().to(self._device).contiguous()
                wait(self._group.broadcast([elements(value)]), value, self._members[0])
                tensor.copy_(value)

    @torch.no_grad()
    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """After the last backward: give all replicas the sums of their gradients.

        The gradients of a bucket are followed by one flag for each parameter: has it a gradient?
        """
        for bucket in _buckets([p for p in parameters if p.requires_grad]):
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            exist = gradients[0].new_tensor([p.grad is not None for p in bucket])
            flat = torch.cat([*(g.reshape(-1) for g in gradients), exist]).to(self._device)
            self._summed += flat.nbytes
            wait(self._group.allreduce([flat]), flat, self._next)
            sizes = [*(p.numel() for p in bucket), len(bucket)]
            *sums, exist = flat.to(bucket[0].device).split(sizes)
            for parameter, gradient, exists in zip(bucket, sums, exist, strict=True):
                if parameter.grad is not None:
                    parameter.grad.copy_(gradient.view_as(parameter))
                elif exists:  # not part of the graph here, but of another replica's
                    parameter.grad = gradient.view_as(parameter).clone()

    @property
    def sent_bytes(self) -> int:
        """Bytes that this process has sent so far, as a ring sends them."""
        return round(2 * (self._group.size() - 1) / self._group.size() * self._summed)

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


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Consecutive parameters of one dtype, of at most `BUCKET` bytes unless it is one."""
    buckets: list[list[nn.Parameter]] = []
    for parameter in parameters:
        last = buckets[-1] if buckets else []
        fits = sum(p.nbytes for p in last) + parameter.nbytes <= BUCKET
        if last and fits and parameter.dtype == last[0].dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets
