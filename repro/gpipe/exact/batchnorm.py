"""Running statistics of normalisation layers, updated once for each mini-batch.

Layers train on the statistics of each micro-batch. The running ones, for evaluation, are those of
the whole mini-batch (section 2.3 of arXiv:1811.06965v5).

While such a layer runs, it has scratch buffers and momentum 1, so every F writes the statistics of
its micro-batch there at no extra cost. Before the layer runs again they are merged into a count, a
mean and a spread (the sum of squared distances from the mean) for each channel, in float64. So
memory does not grow with M (Chan, Golub and LeVeque, 1979). After the step the layer's own buffers
are updated once. State-dict keys stay those of the layers.

This holds for torch's own layers when they are called. A subclass with a forward of its own, and
code that hands a layer's buffers to F.batch_norm, update them as with plain micro-batches: once for
each. Such buffers are put back for R, see `buffers`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Self

import torch
from torch import Tensor, nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_FORWARDS = {norm.forward for norm in BATCH_NORMS + INSTANCE_NORMS}
Gather = Callable[[Tensor], list[Tensor]]  # one tensor of each replica


def owns(module: nn.Module, buffer: str) -> bool:
    """Whether a buffer of this name is one of the running statistics that are updated here."""
    names = ("running_mean", "running_var", "num_batches_tracked")
    return buffer in names and _is_torchs_own(module)


def _is_torchs_own(module: nn.Module) -> bool:
    """Whether a module normalises by torch's own forward."""
    return (
        isinstance(module, BATCH_NORMS + INSTANCE_NORMS)
        and type(module).forward in _FORWARDS
        and "forward" not in vars(module)
    )


class _Norm:
    """One layer during a step: while it runs, scratch buffers take the place of its own."""

    def __init__(self, module: Any, scratch: Tensor) -> None:
        self.module = module
        self.forward = type(module).forward
        self.running = module.running_mean, module.running_var
        self.momentum, self.tracked = module.momentum, module.num_batches_tracked
        # Views share a version counter; `data` has one of its own. With a shared one autograd would
        # refuse the backward of a batch norm once an instance norm wrote to its views.
        self.scratch = scratch[0].data, scratch[1].data
        # 1 if variances are over all examples of a batch. An instance norm averages the variances
        # of its examples and does not count its batches.
        self.pooled = int(isinstance(module, BATCH_NORMS))
        self.ran = False
        self.fresh = 0  # values whose statistics are in the scratch buffers and not merged yet

    def hold(
        self, momentum: float | None, running: tuple[Tensor, Tensor], tracked: Tensor | None
    ) -> None:
        """Give the layer a momentum and buffers: its own, or the scratch ones."""
        # Past `nn.Module.__setattr__`, which takes as long as a small operator.
        vars(self.module)["momentum"] = momentum
        buffers = self.module._buffers
        buffers["running_mean"], buffers["running_var"] = running
        buffers["num_batches_tracked"] = tracked


class Statistics:
    """Around a step: the layers of a stage that track running statistics.

    If the step succeeds, these move once, by the whole mini-batch.

    Attributes:
        counting: True while F runs and False while R does, so that a micro-batch counts once.
        tensors: in memory only while a step runs; their size does not depend on M.
    """

    def __init__(self, modules: Iterable[nn.Module], gather: Gather | None = None) -> None:
        self.counting, self._gather = False, gather
        tracking: list[Any] = [
            m for m in modules if _is_torchs_own(m) and m.training and m.track_running_stats
        ]
        tracking = [module for module in tracking if module.running_mean is not None]
        device = tracking[0].running_mean.device if tracking else None
        self._dtypes = [module.running_mean.dtype for module in tracking]
        self._sizes = [module.running_mean.numel() for module in tracking]  # channels of each norm
        # Count of values, mean and spread of all norms, one norm behind the other: [3, channels of
        # all norms].
        channels = sum(self._sizes)
        self._channels = torch.tensor(self._sizes, dtype=torch.int64, device=device)
        self._merged = torch.zeros((3, channels), dtype=torch.float64, device=device)
        # The scratch buffers likewise, for each type; those of other types stay zero there.
        self._scratch = {
            dtype: torch.zeros((2, channels), dtype=dtype, device=device)
            for dtype in dict.fromkeys(self._dtypes)
        }
        self.tensors = [self._merged, *self._scratch.values()]
        scratch = self._of_norms(self._scratch)
        self._norms = [_Norm(m, own) for m, own in zip(tracking, scratch, strict=True)]
        self._fresh: list[int] = []  # of all norms, at the last merge
        # In place of a hook before and one behind it: hooks of the user find the layer's buffers.
        for norm in self._norms:
            vars(norm.module)["forward"] = partial(self._forward, norm)

    def _of_norms(self, of_types: Mapping[torch.dtype, Tensor]) -> list[Tensor]:
        """Each norm's part in its own type, a view: [2, channels of the norm]."""
        parts = {dtype: both.split(self._sizes, dim=1) for dtype, both in of_types.items()}
        return [parts[dtype][n] for n, dtype in enumerate(self._dtypes)]

    def settle(self) -> None:
        """Merge what the last F has left, so that the next pass has no operators of a merge."""
        if any(norm.fresh for norm in self._norms):
            self._merge()

    def _forward(self, norm: _Norm, inputs: Tensor) -> Tensor:
        """Run a layer, which overwrites its statistics of the last pass."""
        # That was an F; this is the next one, an R, or a second use in the same F.
        if norm.fresh:
            self._merge()
        norm.hold(1.0, norm.scratch, None)
        try:
            output = norm.forward(norm.module, inputs)
        finally:
            norm.hold(norm.momentum, norm.running, norm.tracked)
        if self.counting:
            examples = output.shape[0]
            norm.fresh = output.numel() // output.shape[1] if norm.pooled else examples
            norm.ran = True
        return output

    def _merge(self) -> None:
        """Merge what is fresh, of all norms at once: each alone would take as long as a layer."""
        fresh = [norm.fresh for norm in self._norms]
        if fresh != self._fresh:  # otherwise as at the last merge
            self._fresh, pooled = fresh, self._pooled()
            freedom = [max(n - one, 0) for n, one in zip(fresh, pooled, strict=True)]
            self._weights = self._for_channels([fresh, freedom, pooled])
        for norm in self._norms:
            norm.fresh = 0
        counts, of_variance, pooled = self._weights
        before, mean, spread = self._merged
        share = counts / (before + counts).clamp_(min=1)
        parts = (part.to(torch.float64, copy=True) for part in self._scratch.values())
        fresh_mean, fresh_variance = reduce(torch.add, parts)
        # Products and sums are separate operators, never fused: fused ones round otherwise at the
        # end of a tensor, and a norm's place in the tensor depends on K.
        distance = fresh_mean.sub_(mean)
        mean.add_(share * distance)
        spread.add_(fresh_variance.mul_(of_variance))
        spread.add_(share.mul_(pooled * before).mul_(distance.square_()))
        before.add_(counts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.restore()
        if kind is None:
            self._commit()

    def restore(self) -> None:
        """Give every layer its own forward back."""
        for norm in self._norms:
            vars(norm.module).pop("forward", None)

    @torch.no_grad()
    def _commit(self) -> None:
        """Update all running statistics once."""
        self.settle()
        ran = [norm.ran for norm in self._norms]
        if not ran or (self._gather is None and not any(ran)):
            return
        total, mean, spread = self._merged
        pooled = self._for_channels([self._pooled()])[0]
        if self._gather is not None:
            # [G, 3, channels of all norms] of G replicas
            counts, means, spreads = torch.stack(self._gather(self._merged)).unbind(1)
            total = counts.sum(0)
            mean = (counts * means).sum(0) / total
            spread = spreads.sum(0) + (counts * (means - mean).square()).sum(0) * pooled
            # A norm that did not run here may have run on another replica.
            ran = (total[self._channels.cumsum(0) - 1] > 0).tolist()
        new = torch.stack([mean, spread / (total - pooled)])
        of_norms = self._of_norms({dtype: new.to(dtype) for dtype in self._scratch})
        pairs = zip(self._norms, of_norms, strict=True)
        self._update([pair for pair, yes in zip(pairs, ran, strict=True) if yes])

    def _update(self, ran: Sequence[tuple[_Norm, Tensor]]) -> None:
        """Move the running statistics of norms that ran, all of one factor at once."""
        counters = [norm.tracked for norm, _ in ran if norm.pooled and norm.tracked is not None]
        if counters:
            torch._foreach_add_(counters, 1)
        running: dict[float, tuple[list[Tensor], list[Tensor]]] = {}
        for norm, new in ran:
            factor = norm.momentum or 0.0  # share of the new ones
            if norm.momentum is None and norm.pooled and norm.tracked is not None:
                factor = 1.0 / norm.tracked.item()
            old_of_factor, new_of_factor = running.setdefault(factor, ([], []))
            old_of_factor += norm.running
            new_of_factor += new.unbind()
        for factor, (old_values, new_values) in running.items():
            torch._foreach_mul_(old_values, 1.0 - factor)
            torch._foreach_add_(old_values, new_values, alpha=factor)

    def _pooled(self) -> list[int]:
        return [norm.pooled for norm in self._norms]

    def _for_channels(self, values: Sequence[Sequence[int]]) -> Tensor:
        """Numbers of each norm, repeated for its channels: [numbers, channels of all norms]."""
        tensor = torch.tensor(values, dtype=torch.float64)
        moved = tensor.to(self._merged.device, non_blocking=True)  # without waiting for a GPU
        return moved.repeat_interleave(self._channels, dim=1, output_size=self._merged.shape[1])


NO_STATISTICS = Statistics([])
