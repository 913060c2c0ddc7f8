"""torchgpipe 0.0.7 as a method: all stages in one process, to compare results but not speed.

On the CPU its stages share one thread. Batch norm is the library's deferred kind, whose running
statistics are over the mini-batch.
"""

import warnings
from importlib import import_module
from typing import Any

from torch import nn

from repro.gpipe.tree import Tree
from repro.methods.method import Peer, Setup

with warnings.catch_warnings():  # written for torch 1.6
    warnings.simplefilter("ignore")
    # Imported by name, since it is optional and a type checker may not find it.
    GPipe: Any = import_module("torchgpipe").GPipe


class TorchGPipe(Peer):
    """All stages under `torchgpipe.GPipe`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, 1, 0)
        self.balance = setup.counts()
        self._model = GPipe(
            setup.build_stage([len(setup.layers)], 0),
            [*self.balance],
            devices=[setup.device] * setup.config.stages,
            chunks=setup.config.micro_batches,
            checkpoint=setup.config.checkpoint,
            deferred_batch_norm=True,
        )
        self.module = nn.Sequential(*self._model)
        self._optimizer = setup.make_optimizer(self.module.parameters())

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        loss = self._setup.loss(self._model(inputs), targets)
        loss.backward()
        return loss.item()
