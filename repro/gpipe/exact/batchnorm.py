"""Running statistics of normalisation layers, updated once for each mini-batch.

Layers train on the statistics of each micro-batch. The running ones, for evaluation, are those of
the whole mini-batch (section 2.3 of arXiv:1811.06965v5).

While a step runs, a layer has scratch buffers and momentum 1, so every F writes the statistics of
its micro-batch there at no extra cost. Before the layer runs again they are merged into a count, a
mean and a spread (the sum of squared distances from the mean) for each channel, in float64. So
memory does not grow with M (Chan, Golub and LeVeque, 1979). After the step the layer's own buffers
are updated once. State-dict keys stay those of the layers.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
Gather = Callable[[Tensor], list[Tensor]]  # one tensor of each replica


def owns(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer of this name is one of the running statistics that are updated here."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return isinstance(module, BATCH_NORMS + INSTANCE_NORMS) and buffer in names


class _Norm:
    """One layer during a step: its own buffers are put aside, scratch buffers take their place."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.running = module.running_mean, module.running_var
        self.scratch = torch.zeros_like(module.running_mean), torch.zeros_like(module.running_var)
        self.momentum = module.momentum
        self.tracked = module.num_batches_tracked
        # 1 if variances are over all examples of a batch. An instance norm averages the variances
        # of its examples and does not count its batches.
        self.pooled = int(isinstance(module, BATCH_NORMS))
        self.count = 0  # values for each channel that were merged
        self.fresh = 0  # values whose statistics are in the scratch buffers and not merged yet
        self.merged: tuple[Tensor, Tensor]  # mean and spread, float64
        module.momentum = 1.0
        module.num_batches_tracked = None
        module.running_mean, module.running_var = self.scratch

    def take(self, output: Tensor) -> None:
        """Note that a forward has left the statistics of its micro-batch."""
        self.fresh = output.numel() // (
            output.shape[1] if self.pooled else output.shape[1:].numel()
        )

    def merge_weights(self) -> tuple[float, float, float]:
        """Weights with which to merge the fresh statistics, which count as merged from now on.

        Returns:
            Weights of the distance between the means, of the fresh variance, and of the squared
                distance between the means. All are 0 if nothing is fresh.
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
        """Count, mean and spread of the values: [1 + 2 C]."""
        return torch.cat([self.merged[0].new_tensor([self.count]), *self.merged])

    def _joined(
        self, counts: Tensor, means: Tensor, spreads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Count, mean and spread of G groups together: [G, 1], [G, C], [G, C] -> [1], [C], [C]."""
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        spread = spreads.sum(0) + (counts * (means - mean).square()).sum(0) * self.pooled
        return total, mean, spread

    def commit(self, parts: list[Tensor]) -> None:
        """Update the running statistics once, given `summed` of every replica."""
        channels = self.running[0].numel()
        groups = torch.stack(parts).split([1, channels, channels], dim=1)
        count, mean, spread = self._joined(*groups)
        factor = self.momentum
        if self.tracked is not None and self.pooled:
            self.tracked += 1
            factor = 1.0 / self.tracked.item() if factor is None else factor
        factor = factor or 0.0
        for running, new in zip(self.running, (mean, spread / (count - self.pooled)), strict=True):
            running.mul_(1.0 - factor).add_(new.to(running.dtype), alpha=factor)


class Statistics:
    """The layers of a stage that track running statistics, while a step runs.

    Attributes:
        counting: True while F runs and False while R does, so that a micro-batch counts once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.counting = False
        self._norms: dict[int, _Norm] = {}  # by the id of their module
        for part in module.modules():
            if (
                isinstance(part, BATCH_NORMS + INSTANCE_NORMS)
                and part.training
                and part.track_running_stats
                and part.running_mean is not None
            ):
                self._norms[id(part)] = _Norm(part)
        norms = [*self._norms.values()]
        channels = [norm.running[0].numel() for norm in norms]
        device = norms[0].running[0].device if norms else None
        self._channels = torch.tensor(channels, dtype=torch.int64, device=device)
        # Means and spreads of all norms, one norm behind the other; each norm has views of its own.
        means = torch.zeros(sum(channels), dtype=torch.float64, device=device)
        spreads = torch.zeros_like(means)
        self._merged = [means, spreads]
        views = zip(norms, means.split(channels), spreads.split(channels), strict=True)
        for norm, mean, spread in views:
            norm.merged = mean, spread
        self._hooks = [norm.module.register_forward_pre_hook(self._before) for norm in norms]
        self._hooks += [norm.module.register_forward_hook(self._after) for norm in norms]

    def settle(self) -> None:
        """Merge what the last F has left, so that the next pass has no operators of a merge."""
        if any(norm.fresh for norm in self._norms.values()):
            self._merge()

    def _before(self, module: nn.Module, _inputs: object) -> None:
        # The layer is about to overwrite its statistics: in the next F, in an R, or because an F
        # uses the layer twice.
        if self._norms[id(module)].fresh:
            self._merge()

    def _after(self, module: nn.Module, _inputs: object, output: Tensor) -> None:
        if self.counting:
            self._norms[id(module)].take(output)

    @torch.no_grad()
    def _merge(self) -> None:
        """Merge what is fresh, of all norms at once.

        For each norm alone it would take as long as a small layer.
        """
        norms = [*self._norms.values()]
        mean, spread = self._merged
        weights = torch.tensor([norm.merge_weights() for norm in norms], dtype=torch.float64)
        weights = weights.to(mean.device, non_blocking=True)  # without waiting for a GPU
        of_distance, of_variance, of_square = weights.t().repeat_interleave(
            self._channels, dim=1, output_size=len(mean)
        )
        fresh_mean = torch.cat([norm.scratch[0] for norm in norms]).double()
        fresh_variance = torch.cat([norm.scratch[1] for norm in norms]).double()
        # Products and sums are separate operators, never fused: fused ones round otherwise at the
        # end of a tensor, and a norm's place in the tensor depends on K.
        distance = fresh_mean.sub_(mean)
        mean.add_(of_distance.mul_(distance))
        spread.add_(of_variance.mul_(fresh_variance))
        spread.add_(of_square.mul_(distance.square_()))

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors that are in memory only while a step runs; their size does not depend on M."""
        return [*self._merged, *(t for norm in self._norms.values() for t in norm.scratch)]

    @property
    def nbytes(self) -> int:
        """Size of `tensors`."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def restore(self) -> None:
        """Give every layer its own buffers back, and remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        for norm in self._norms.values():
            norm.restore()

    @torch.no_grad()
    def commit(self, gather: Gather | None) -> None:
        """After `restore`: update all running statistics once."""
        self.settle()
        # A norm that did not run here may have run on another replica.
        norms = [n for n in self._norms.values() if n.count or gather is not None]
        if not norms:
            return
        summed = [norm.summed() for norm in norms]
        replicas = [summed]
        ran = [True] * len(norms)
        if gather is not None:
            replicas = [r.split([len(t) for t in summed]) for r in gather(torch.cat(summed))]
            counts = torch.stack([torch.stack([t[0] for t in replica]) for replica in replicas])
            ran = (counts.sum(0) > 0).tolist()
        for norm, parts, norm_ran in zip(norms, zip(*replicas, strict=True), ran, strict=True):
            if norm_ran:
                norm.commit(list(parts))


@contextmanager
def once_per_mini_batch(module: nn.Module, gather: Gather | None = None) -> Iterator[Statistics]:
    """Around a step: if it succeeds, update the running statistics once, by the whole mini-batch.

    Args:
        module: of one stage.
        gather: over the replicas of this stage, which all use the mini-batches of all.
    """
    statistics = Statistics(module)
    try:
        yield statistics
    except BaseException:
        statistics.restore()
        raise
    statistics.restore()
    statistics.commit(gather)
