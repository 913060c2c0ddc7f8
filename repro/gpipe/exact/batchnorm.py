"""Running statistics of normalisation layers: moved once a mini-batch, whatever M is and however often a layer runs.

Layers train on the statistics of each micro-batch; the running ones, for evaluation, see the whole
mini-batch (section 2.3 of arXiv:1811.06965v5). While a step runs, every F leaves the statistics of
its micro-batch in scratch buffers: with momentum 1 a layer writes just these there, so they cost
nothing extra. Before the layer runs again they are merged into a count, a mean and a spread in
float64 for each channel, so memory does not grow with M (Chan, Golub and LeVeque, 1979). After the
step the layer's own buffers move once. State-dict keys stay those of the layers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
Gather = Callable[[Tensor], list[Tensor]]  # one tensor of each replica


def owns(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer of this name is one of the running statistics that are moved here."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return isinstance(module, BATCH_NORMS + INSTANCE_NORMS) and buffer in names


class _Norm:
    """One layer during a step: its own buffers put aside, scratch buffers in their place."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.running = module.running_mean, module.running_var
        self.scratch = torch.zeros_like(module.running_mean), torch.zeros_like(module.running_var)
        self.momentum = module.momentum
        self.tracked = module.num_batches_tracked
        # Over examples; an instance norm averages their variances and does not count its batches.
        self.pooled = int(isinstance(module, BATCH_NORMS))
        self.count = 0  # values for each channel that were merged
        self.fresh = 0  # values whose statistics are in the scratch buffers, to be merged
        self.merged: tuple[Tensor, Tensor]  # mean, and sum of squared distances from it; float64
        module.momentum = 1.0
        module.num_batches_tracked = None
        module.running_mean, module.running_var = self.scratch

    def take(self, output: Tensor) -> None:
        """Note that a forward has left the statistics of its micro-batch."""
        self.fresh = output.numel() // (
            output.shape[1] if self.pooled else output.shape[1:].numel()
        )

    def merge_weights(self) -> tuple[float, float, float]:
        """Of the fresh statistics in the merged ones; from now on they count as merged.

        Returns:
            For the distance between the means, the fresh variance, and the squared distance between
                the means. All
            are 0 if nothing is fresh.
        """
        before, fresh = self.count, self.fresh
        self.count, self.fresh = before + fresh, 0
        if not fresh:
            return 0.0, 0.0, 0.0
        share = fresh / self.count
        return share, fresh - self.pooled, self.pooled * before * share

    def restore(self) -> None:
        """Give the layer its own buffers back."""
        self.module.running_mean, self.module.running_var = self.running
        self.module.momentum = self.momentum
        self.module.num_batches_tracked = self.tracked

    def summed(self) -> Tensor:
        """[1 + 2 C]: how many values, their mean, and the sum of their squared distances from it."""
        return torch.cat([self.merged[0].new_tensor([self.count]), *self.merged])

    def _joined(self, counts: Tensor, means: Tensor, spreads: Tensor) -> Tensor:
        """Put groups of values together: [G, 1], [G, C], [G, C] -> [1 + 2 C]."""
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        spread = spreads.sum(0) + (counts * (means - mean).square()).sum(0) * self.pooled
        return torch.cat([total, mean, spread])

    def commit(self, parts: list[Tensor]) -> None:
        """Move the running statistics once, given `summed` of every replica."""
        groups = torch.stack(parts)
        channels = self.running[0].numel()
        count, mean, spread = self._joined(*groups.split([1, channels, channels], dim=1)).split(
            [1, channels, channels]
        )
        factor = self.momentum
        if self.tracked is not None and self.pooled:
            self.tracked += 1
            factor = 1.0 / self.tracked.item() if factor is None else factor
        factor = factor or 0.0
        for running, new in zip(self.running, (mean, spread / (count - self.pooled)), strict=True):
            running.mul_(1.0 - factor).add_(new.to(running.dtype), alpha=factor)


class Statistics:
    """The layers of a stage that track running statistics, while a step runs.

    `counting` is on while F runs and off while R does: a micro-batch counts once.
    """

    def __init__(self, module: nn.Module) -> None:
        kinds = BATCH_NORMS + INSTANCE_NORMS
        found = [
            m
            for m in module.modules()
            if isinstance(m, kinds) and m.training and m.running_mean is not None
        ]
        self.counting = False
        self._norms = {id(m): _Norm(m) for m in found if m.track_running_stats}
        norms = [*self._norms.values()]
        channels = [norm.running[0].numel() for norm in norms]
        device = norms[0].running[0].device if norms else None
        self._channels = torch.tensor(channels, dtype=torch.int64, device=device)
        # Means and spreads of all norms, one norm behind the other.
        self._merged = [
            torch.zeros(sum(channels), dtype=torch.float64, device=device) for _ in range(2)
        ]
        for norm, mean, spread in zip(
            norms, *(flat.split(channels) for flat in self._merged), strict=True
        ):
            norm.merged = mean, spread
        self._hooks = [norm.module.register_forward_pre_hook(self._before) for norm in norms]
        self._hooks += [norm.module.register_forward_hook(self._after) for norm in norms]

    def settle(self) -> None:
        """Merge what the last F has left, so that the next pass calls no operator for it."""
        if any(norm.fresh for norm in self._norms.values()):
            self._merge()

    def _before(self, module: nn.Module, _inputs: object) -> None:
        # The layer is about to overwrite them: in the next F, in an R, or used a second time in an
        # F.
        if self._norms[id(module)].fresh:
            self._merge()

    def _after(self, module: nn.Module, _inputs: object, output: Tensor) -> None:
        if self.counting:
            self._norms[id(module)].take(output)

    @torch.no_grad()
    def _merge(self) -> None:
        """Merge what is fresh, of all norms at once: for each norm alone it would take as long as a small layer."""
        norms = [*self._norms.values()]
        mean, spread = self._merged
        rows = torch.tensor([norm.merge_weights() for norm in norms], dtype=torch.float64)
        rows = rows.to(mean.device, non_blocking=True)  # a GPU is not to wait for it
        share, own, between = rows.t().repeat_interleave(
            self._channels, dim=1, output_size=len(mean)
        )
        fresh_mean, fresh_variance = (
            torch.cat([norm.scratch[n] for norm in norms]).double() for n in range(2)
        )
        # Products and sums in turn, never fused: fused ones round otherwise at the end of a tensor,
        # and where a norm lies in it depends on K.
        distance = fresh_mean.sub_(mean)
        mean.add_(share.mul_(distance))
        spread.add_(own.mul_(fresh_variance))
        spread.add_(between.mul_(distance.square_()))

    @property
    def tensors(self) -> list[Tensor]:
        """What is in memory only while a step runs, however many micro-batches it has."""
        return [*self._merged, *(t for norm in self._norms.values() for t in norm.scratch)]

    @property
    def nbytes(self) -> int:
        """Of `tensors`."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def restore(self) -> None:
        """Leave every layer as it was."""
        for hook in self._hooks:
            hook.remove()
        for norm in self._norms.values():
            norm.restore()

    @torch.no_grad()
    def commit(self, gather: Gather | None) -> None:
        """After `restore`: move all running statistics once."""
        self.settle()
        # A norm that did not run here may have run on another replica.
        norms = [n for n in self._norms.values() if n.count or gather is not None]
        if not norms:
            return
        own = [n.summed() for n in norms]
        replicas = [own]
        ran = [True] * len(norms)
        if gather is not None:
            replicas = [r.split([len(t) for t in own]) for r in gather(torch.cat(own))]
            counts = torch.stack(
                [torch.stack([part[0] for part in replica]) for replica in replicas]
            )
            ran = (counts.sum(0) > 0).tolist()
        for norm, parts in compress(zip(norms, zip(*replicas, strict=True), strict=True), ran):
            norm.commit(list(parts))


@contextmanager
def once_per_mini_batch(module: nn.Module, gather: Gather | None = None) -> Iterator[Statistics]:
    """Collect the statistics of one step's micro-batches and move the running ones at its end, if it succeeds.

    Args:
        module: of one stage, in training mode where it trains.
        gather: over the replicas of this stage, so that all of them move alike, by the mini-batch
            of all.
    """
    statistics = Statistics(module)
    try:
        yield statistics
    except BaseException:
        statistics.restore()
        raise
    statistics.restore()
    statistics.commit(gather)
