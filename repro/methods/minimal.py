"""The paper on one page (`repro.gpipe.minimal`) as a method: what our pipeline costs above it."""

import torch.distributed as dist
from torch import nn

from repro.gpipe import StepResult
from repro.gpipe.minimal import GPipe
from repro.gpipe.tree import Tree
from repro.methods.method import Method, Setup


class Minimal(Method):
    """One stage of `GPipe`; see `Method`. Stages hand on one float32 tensor, on the CPU."""

    def __init__(self, setup: Setup) -> None:
        K = setup.config.stages
        super().__init__(setup, K, dist.get_rank())
        self.balance = setup.counts()
        self.module = setup.build_stage(self.balance, self._rank)
        stages = [self.module if j == self._rank else nn.Identity() for j in range(K)]
        self._pipe = GPipe(stages, setup.config.micro_batches, setup.group)
        self._optimizer = setup.make_optimizer(self.module.parameters())

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """See `Method`; it always has an optimizer."""
        assert self._optimizer is not None
        start = self._now()
        loss = self._pipe.train_step(inputs, targets, self._setup.loss, self._optimizer)
        return StepResult(loss, start, self._now())

    def sent_bytes(self, inputs: Tree, targets: Tree) -> None:
        """They are not counted."""
