"""Methods without a pipeline: every process runs all layers, micro-batch by micro-batch.

Each of the D replicas trains on its part of the mini-batch, cut into M micro-batches whose
gradients are accumulated. Random numbers in layers belong to (seed, step, micro-batch): processes
that have parts of the same layers drop the same activations, and replicas drop others.
"""

from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from repro.gpipe.core import memory
from repro.gpipe.core.loss import MeanLoss
from repro.gpipe.exact import rng
from repro.gpipe.tree import Tree, batch_size
from repro.methods.method import Peer, Setup


class RecomputedLayers(nn.Sequential):
    """Layers of which each runs again in the backward."""

    def forward(self, value: Tree) -> Tree:
        """Run the layers."""
        for layer in self:
            value = checkpoint(layer, value, use_reentrant=False)
        return value


class Unpipelined(Peer):
    """One of the processes of a group that all run every layer."""

    meter: ClassVar[type[memory.LiveBytes]] = memory.LiveBytes  # of the CPU's memory

    def __init__(self, setup: Setup) -> None:
        assert setup.group is not None
        super().__init__(setup, dist.get_world_size(setup.group), dist.get_rank(setup.group))
        self._group = setup.group
        self._replicas = setup.config.replicas
        self._replica = self._rank if self._replicas > 1 else 0
        self.balance = (len(setup.layers),)
        layers = setup.build_stage(self.balance, 0)
        if setup.config.recompute == "always":
            layers = RecomputedLayers(OrderedDict(layers.named_children()))
        self.module = layers
        self._model = self._wrapped(layers)
        self._steps = 0
        # Of the wrapped model, whose parameters may be other ones.
        self._optimizer = setup.make_optimizer(self._model.parameters())

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        raise NotImplementedError

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch, the last one of the step or another."""
        return nullcontext()

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        M = self._setup.config.micro_batches
        head = self._head(targets, batch_size(inputs))
        loss = 0.0
        with rng.preserved(self._setup.device):
            for i, part in enumerate(self.cut(self._setup.placed(inputs))):
                seed = rng.hashed(self._setup.seed, self._steps, self._replica * M + i, 0)
                rng.reseed(seed, self._setup.device)
                with self._micro_batch(last=i == M - 1):
                    share = head(i, self._model(part))
                    # The library takes the mean over processes, and shares are made for a sum.
                    (share * self._replicas).backward()
                loss += share.item()
        self._steps += 1
        return loss

    def peak_bytes(self, inputs: Tree, targets: Tree) -> list[int]:
        """Peak memory of the fullest process."""
        resident = self._resident(inputs, targets)
        step = partial(self.train_step, inputs, targets)
        peak = memory.peak_memory(step, self._setup.device, resident, meter=self.meter)
        return [max(self.gather(peak))]

    def _head(self, targets: Tree, examples: int) -> MeanLoss:
        """Weighs the losses of this replica's micro-batches in the mean over all replicas."""
        M = self._setup.config.micro_batches
        return MeanLoss(self._setup.loss, self._setup.placed(targets), examples, M, self._of_all)

    def _of_all(self, loss: float) -> float:
        if self._replicas == 1:
            return loss
        total = torch.tensor([loss], dtype=torch.float64, device=self._setup.device)
        dist.all_reduce(total, group=self._group)
        return total.item()


class DataParallel(Unpipelined):
    """Torch's `DistributedDataParallel`: D replicas whose gradients are all-reduced.

    They are summed in the last micro-batch's backward, in buckets, during the computation. Running
    statistics of batch norm are those of the first replica, which the library broadcasts, and move
    with every micro-batch, twice where it is recomputed.
    """

    _model: DistributedDataParallel
    # A freed gradient would no longer be a view of its bucket, but take memory besides it.
    frees_gradients = False

    def _wrapped(self, module: nn.Sequential) -> nn.Module:
        # Without views the library keeps a second copy of all gradients, in its buckets.
        return DistributedDataParallel(
            module, process_group=self._group, gradient_as_bucket_view=True
        )

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        return nullcontext() if last else self._model.no_sync()

    def _occupied(self, tensor: Tensor) -> Tensor:
        # A gradient is a view of a bucket, which stays when the gradient is cleared.
        return tensor.detach().new_empty(0).set_(tensor.untyped_storage())
