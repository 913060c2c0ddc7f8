"""ZeRO-1: our pipeline with replicas that shard the optimizer's state (arXiv:1910.02054).

Each replica of a stage keeps the state of some parameters, updates these, and sends them to the
others. It is torch's ZeroRedundancyOptimizer over the replicas of a stage. Gradients are summed as
without it, so the weights are the same, bit for bit.
"""

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from repro.gpipe.core.microbatch import Tree
from repro.methods.method import Setup
from repro.methods.own import Own
from repro.methods.traffic import ring_share


class ShardedState(Own):
    """Our pipeline with sharded optimizer state."""

    def _make_optimizer(self, setup: Setup) -> torch.optim.Optimizer | None:
        parameters = list(self.module.parameters())
        if setup.optimizer is None or not parameters:
            return None
        make: Any = setup.optimizer
        optimizer = ZeroRedundancyOptimizer(
            parameters, optimizer_class=make, process_group=setup.group
        )
        # The state that is in this process, so that its memory is counted.
        optimizer.state = optimizer.optim.state
        return optimizer

    def sent_bytes(self, inputs: Tree, targets: Tree) -> list[dict[str, int]]:
        """As without sharding, and the updated weights."""
        if self._optimizer is not None:
            share = ring_share("broadcast", self._setup.config.replicas)
            weights = sum(p.nbytes for p in self.module.parameters())
            self._sent["broadcast"] = round(share * weights)
        return super().sent_bytes(inputs, targets)
