"""Running statistics of normalisation layers: moved once a mini-batch, whatever M is and however often a layer runs.

Layers train on the statistics of each micro-batch; the running ones, for evaluation, see the whole mini-batch
(section 2.3 of arXiv:1811.06965v5). While a step runs, every F leaves the statistics of its micro-batch in scratch
buffers: with momentum 1 a layer writes just these there, so they cost nothing extra. After the step they are put
together, exactly, and the layer's own buffers move once. State-dict keys stay those of the layers.
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
    """One layer during a step: its own buffers put aside, the statistics of its micro-batches collected."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.running = module.running_mean, module.running_var
        self.momentum = module.momentum
        self.tracked = module.num_batches_tracked
        # Over examples; an instance norm averages their variances and does not count its batches.
        self.pooled = int(isinstance(module, BATCH_NORMS))
        self.counts: list[int] = []
        self.statistics: list[tuple[Tensor, Tensor]] = []
        module.momentum = 1.0
        module.num_batches_tracked = None
        self._scratch()

    def _scratch(self) -> None:
        self.module.running_mean, self.module.running_var = (torch.zeros_like(t) for t in self.running)

    def take(self, output: Tensor) -> None:
        """Keep what the F of a micro-batch has left."""
        channels = output.shape[1] if self.pooled else output.shape[1:].numel()
        self.counts.append(output.numel() // channels)
        self.statistics.append((self.module.running_mean, self.module.running_var))
        self._scratch()

    def restore(self) -> None:
        """Give the layer its own buffers back."""
        self.module.running_mean, self.module.running_var = self.running
        self.module.momentum = self.momentum
        self.module.num_batches_tracked = self.tracked

    def summed(self) -> Tensor:
        """[1 + 2 C]: how many values, their mean, and the sum of their squared distances from it."""
        if not self.counts:
            return torch.zeros(1 + 2 * self.running[0].numel(), dtype=torch.float64, device=self.running[0].device)
        counts = torch.tensor(self.counts, dtype=torch.float64, device=self.running[0].device)[:, None]
        means, variances = (torch.stack(s).double() for s in zip(*self.statistics, strict=True))
        return self._joined(counts, means, variances * (counts - self.pooled))

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
        count, mean, spread = self._joined(*groups.split([1, channels, channels], dim=1)).split([1, channels, channels])
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
        found = [m for m in module.modules() if isinstance(m, kinds) and m.training and m.running_mean is not None]
        self.counting = False
        self._norms = {id(m): _Norm(m) for m in found if m.track_running_stats}
        self._hooks = [n.module.register_forward_hook(self._hook) for n in self._norms.values()]

    def _hook(self, module: nn.Module, _inputs: object, output: Tensor) -> None:
        if self.counting:
            self._norms[id(module)].take(output)

    @property
    def nbytes(self) -> int:
        """Of the statistics that the F of one micro-batch leaves."""
        return sum(t.nbytes for norm in self._norms.values() for t in norm.running)

    def restore(self) -> None:
        """Leave every layer as it was."""
        for hook in self._hooks:
            hook.remove()
        for norm in self._norms.values():
            norm.restore()

    @torch.no_grad()
    def commit(self, gather: Gather | None) -> None:
        """After `restore`: move all running statistics once."""
        # A norm that did not run here may have run on another replica.
        norms = [n for n in self._norms.values() if n.counts or gather is not None]
        if not norms:
            return
        own = [n.summed() for n in norms]
        replicas = [own]
        ran = [True] * len(norms)
        if gather is not None:
            replicas = [r.split([len(t) for t in own]) for r in gather(torch.cat(own))]
            counts = torch.stack([torch.stack([part[0] for part in replica]) for replica in replicas])
            ran = (counts.sum(0) > 0).tolist()
        for norm, parts in compress(zip(norms, zip(*replicas, strict=True), strict=True), ran):
            norm.commit(list(parts))


@contextmanager
def once_per_mini_batch(module: nn.Module, gather: Gather | None = None) -> Iterator[Statistics]:
    """Collect the statistics of one step's micro-batches and move the running ones at its end, if it succeeds.

    Args:
        module: of one stage, in training mode where it trains.
        gather: over the replicas of this stage, so that all of them move alike, by the mini-batch of all.
    """
    statistics = Statistics(module)
    try:
        yield statistics
    except BaseException:
        statistics.restore()
        raise
    statistics.restore()
    statistics.commit(gather)
