"""Running statistics of batch norms, updated once for each mini-batch.

Layers train on the statistics of each micro-batch. The running ones, for evaluation, are those of
the whole mini-batch (section 2.3 of arXiv:1811.06965v5).

While such a layer runs, it has scratch buffers and momentum 1, so every F writes the statistics of
its micro-batch there at no extra cost. Before the layer runs again they are copied, and a few
copies at a time are merged into a count, a mean and a spread (the sum of squared distances from the
mean) for each channel, in float64. So memory does not grow with M (Chan, Golub and LeVeque, 1979).
The new values of the layer's own buffers are computed before the ranks have voted on the step,
since most ranks wait there, and written once it is good. State-dict keys stay those of the layers.

This holds for torch's own batch norms when they are called. A subclass with a forward of its own,
an instance norm, and code that hands a layer's buffers to F.batch_norm update them as with plain
micro-batches: once for each. Such buffers are put back for R, see `state`.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.exact.guard import Gather, Guard, Pass

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_FORWARDS = {norm.forward for norm in BATCH_NORMS}
_MOST_COPIES = 8  # of micro-batches that wait to be merged: alone, each takes five times as long
_MeanAndVariance = tuple[Tensor, Tensor]
_STATISTICS = "running_mean", "running_var", "num_batches_tracked"  # buffers


def is_torchs_own(module: nn.Module) -> bool:
    """Whether a module normalises by torch's own forward."""
    own = isinstance(module, BATCH_NORMS) and type(module).forward in _FORWARDS
    return own and "forward" not in vars(module)


class _Norm:
    """One layer during a step: while it runs, scratch buffers take the place of its own."""

    def __init__(self, module: Any, scratch: _MeanAndVariance) -> None:
        self.module, self.forward = module, type(module).forward
        # Read and written past nn.Module's own lookup, which takes as long as a small operator.
        self.own = {name: module._buffers[name] for name in _STATISTICS}
        self.scratch = dict(zip(_STATISTICS, [*scratch, None], strict=True))
        self.momentum = module.momentum
        self.ran = False
        self.fresh = 0  # values whose statistics are in the scratch buffers only

    @property
    def factor(self) -> float:
        """The share of this mini-batch in the new running statistics."""
        if self.momentum is None:
            return 1.0 / (self.own["num_batches_tracked"].item() + 1.0)
        return self.momentum


class Statistics:
    """Wraps a step: the layers of a stage that track running statistics.

    If the step succeeds, these move once, by the whole mini-batch.

    Attributes:
        counting: True while F runs and False while R does, so that a micro-batch counts once.
    """

    def __init__(self, modules: Iterable[nn.Module], gather: Gather | None = None) -> None:
        self.counting, self._gather = False, gather
        own = [m for m in modules if m.training and is_torchs_own(m) and m.track_running_stats]
        tracking = [m for m in own if m._buffers.get("running_mean") is not None]
        means: list[Any] = [module._buffers["running_mean"] for module in tracking]
        dtypes = {mean.dtype for mean in means}
        if len(dtypes) > 1:
            types = " and ".join(sorted(map(str, dtypes)))
            raise ValueError(f"batch norms of one rank are {types}: give all of them one type")
        self._sizes = [mean.numel() for mean in means]  # channels of each norm
        # Mean and variance of all norms, one norm behind the other: [2, channels of all norms].
        like = means[0] if means else torch.zeros(0)
        self._device, self._scratch = like.device, like.new_zeros((2, sum(self._sizes)))
        # Counts of all norms, and the scratch buffers, of micro-batches that are not merged yet.
        self._copies: list[tuple[list[int], Tensor]] = []
        # Count, mean and spread of what is merged: [3, channels of all norms].
        self._merged: Tensor | None = None
        self._norms = [*map(_Norm, tracking, self._of_norms(self._scratch))]
        # What a good step writes: new values, to whose places, and what it counts.
        self._new: list[Tensor] = []
        self._old: list[Tensor] = []
        self._counters: list[Tensor] = []
        # In place of a hook before and one behind it: hooks of the user find the layer's buffers.
        for norm in self._norms:
            vars(norm.module)["forward"] = partial(self._forward, norm)

    def _of_norms(self, mean_and_variance: Tensor) -> list[_MeanAndVariance]:
        """Each norm's part, not as a plain view: those share the version that autograd checks."""
        parts = (torch.unsafe_split_with_sizes(row, self._sizes) for row in mean_and_variance)
        return [*zip(*parts, strict=True)]

    def _copy(self) -> None:
        if len(self._copies) == _MOST_COPIES:
            self._merge()
        fresh = [norm.fresh for norm in self._norms]
        self._copies.append((fresh, self._scratch.clone()))
        for norm in self._norms:
            norm.fresh = 0

    def _forward(self, norm: _Norm, inputs: Tensor) -> Tensor:
        """Run a layer, which overwrites its statistics of the last pass."""
        if not (norm.module.training and norm.module.track_running_stats):
            # Its forward was switched off for this call, which moves nothing.
            return norm.forward(norm.module, inputs)
        # That was an F; this is the next one, an R, or a second use in the same F.
        if norm.fresh:
            self._copy()
        attributes, buffers = vars(norm.module), norm.module._buffers
        attributes["momentum"] = 1.0
        buffers.update(norm.scratch)
        try:
            output = norm.forward(norm.module, inputs)
        finally:
            attributes["momentum"] = norm.momentum
            buffers.update(norm.own)
        if self.counting:
            norm.fresh = output.numel() // output.shape[1]
            norm.ran = True
        return output

    def _merge(self) -> None:
        """Merge copies, of all norms at once: each alone would take as long as a layer."""
        if self._merged is None:
            self._merged = self._zeros()
        before, mean, spread = self._merged
        of_last: list[int] = []
        for fresh, mean_and_variance in self._copies:
            if fresh != of_last:  # most micro-batches are of one size
                counts, of_variance = self._for_channels([fresh, [max(n - 1, 0) for n in fresh]])
                of_last = fresh
            distance, variance = mean_and_variance.to(mean.dtype)
            distance.sub_(mean)
            share = counts / (before + counts).clamp_(min=1)
            # Products and sums are separate operators, never fused: fused ones round otherwise at
            # the end of a tensor, and a norm's place in the tensor depends on K.
            mean.add_(distance * share)
            spread.add_(variance.mul_(of_variance))
            spread.add_(distance.square_().mul_(share.mul_(before)))
            before.add_(counts)
        self._copies.clear()

    @torch.no_grad()
    def commit(self) -> None:
        """Write the new running statistics."""
        self.restore()
        if self._new:
            torch._foreach_copy_(self._old, self._new)
            torch._foreach_add_(self._counters, 1)

    def restore(self) -> None:
        """Give every layer its own forward back."""
        for norm in self._norms:
            vars(norm.module).pop("forward", None)

    @property
    def tensors(self) -> list[Tensor]:
        """Tensors in memory during a step, without the copies that wait to be merged."""
        return [self._zeros(), self._scratch]

    def _zeros(self) -> Tensor:
        return torch.zeros((3, sum(self._sizes)), dtype=torch.float64, device=self._device)

    @torch.no_grad()
    def prepare(self) -> None:
        """Compute the new running statistics, after the last F of a step."""
        if not self._norms:
            return
        ran, of_mini_batch = self._mini_batch()
        share = self._for_channels([[norm.factor for norm in self._norms]])[0]
        old = [torch.cat([norm.own[name] for norm in self._norms]) for name in _STATISTICS[:2]]
        dtype = self._scratch.dtype
        new = torch.stack(old) * (1.0 - share).to(dtype) + of_mini_batch * share.to(dtype)
        for norm, parts in zip(self._norms, self._of_norms(new), strict=True):
            if norm in ran:
                self._old += [norm.own[name] for name in _STATISTICS[:2]]
                self._new += parts
        self._counters = [norm.own["num_batches_tracked"] for norm in ran]

    def _mini_batch(self) -> tuple[set[_Norm], Tensor]:
        """The norms that ran, and mean and variance of all norms, as in `_scratch`."""
        ran = {norm for norm in self._norms if norm.ran}
        if self._gather is None and self._merged is None and not self._copies:
            # What a single micro-batch has left is what merging it would give.
            return ran, self._scratch
        self._copy()
        self._merge()
        assert self._merged is not None
        total, mean, spread = self._merged
        if self._gather is not None:
            # [G, 3, channels of all norms] of G replicas
            counts, means, spreads = torch.stack(self._gather(self._merged)).unbind(1)
            total = counts.sum(0)
            mean = (counts * means).sum(0) / total
            spread = spreads.sum(0) + (counts * (means - mean).square()).sum(0)
            # A norm that did not run here may have run on another replica.
            ends = torch.tensor(self._sizes, device=self._device).cumsum(0) - 1
            anywhere = (total[ends] > 0).tolist()
            ran = {norm for norm, yes in zip(self._norms, anywhere, strict=True) if yes}
        return ran, torch.stack([mean, spread / (total - 1)]).to(self._scratch.dtype)

    def _for_channels(self, values: Sequence[Sequence[float]]) -> Tensor:
        """Numbers of each norm, repeated for its channels: [numbers, channels of all norms]."""
        rows = torch.tensor([*values, self._sizes], dtype=torch.float64)
        moved = rows.to(self._device, non_blocking=True)  # without waiting for a GPU
        sizes, all_channels = moved[-1].long(), sum(self._sizes)
        return moved[:-1].repeat_interleave(sizes, dim=1, output_size=all_channels)


_NONE = Statistics([])


class RunningStatistics(Guard):
    """Running statistics count each micro-batch as a mini-batch, and once more in R.

    They must move once a step, by the whole mini-batch. In every step the norms write the
    statistics of each F beside their own buffers, see above.
    """

    _statistics = _NONE

    def begin_step(self, step: Any) -> None:
        norms = [m for m in self._layers.modules if isinstance(m, BATCH_NORMS)]
        trains = norms and not step.evaluate
        self._statistics = Statistics(norms, self._gather) if trains else _NONE

    def before_forward(self, p: Pass) -> None:
        self._statistics.counting = True

    def after_forward(self, p: Pass) -> None:
        self._statistics.counting = False

    def before_vote(self) -> None:
        self._statistics.prepare()

    def commit(self) -> None:
        self._statistics.commit()
        self._statistics = _NONE  # frees them

    def undo(self) -> None:
        self._statistics.restore()
        self._statistics = _NONE
