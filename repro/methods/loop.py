"""A plain training loop of one device: what our pipeline costs at K=1."""

import torch
from torch.utils.checkpoint import checkpoint

from repro.gpipe.tree import Tree
from repro.methods.method import Peer, Setup


class Loop(Peer):
    """Forward and backward of one micro-batch after the other, then one update; see `Method`.

    Batch norm moves with every micro-batch, and twice where all layers are recomputed at once.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, 1, 0)
        self.balance = (len(setup.layers),)
        self.module = setup.build_stage(self.balance, 0)
        self._optimizer = setup.make_optimizer(self.module.parameters())
        self._recompute = setup.config.recompute == "always"

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        placed = self.cut(self._setup.placed(targets))
        losses: list[torch.Tensor] = []
        for part, target, share in zip(
            self.cut(self._setup.placed(inputs)), placed, self._setup.shares(placed), strict=True
        ):
            if self._recompute:
                output = checkpoint(self.module, part, use_reentrant=False)
            else:
                output = self.module(part)
            loss = share * self._setup.loss(output, target)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum().item()
