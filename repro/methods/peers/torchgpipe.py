"""torchgpipe 0.0.7 as a method: all stages in one process, to compare results but not speed.

On the CPU its stages share one thread. Batch norm is the library's deferred kind, whose running
statistics are over the mini-batch.
"""

import warnings
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
from torch import nn

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import Tree, flatten, unflatten
from repro.methods.method import Method, Setup

with warnings.catch_warnings():  # written for torch 1.6
    warnings.simplefilter("ignore")
    # Imported by name, since it is optional and a type checker may not find it.
    GPipe: Any = import_module("torchgpipe").GPipe


class TorchGPipe(Method):
    """All stages under `torchgpipe.GPipe`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, 1, 0)
        self.balance = setup.counts()
        layers = [build(layer, n, setup.seed, setup.device) for n, layer in enumerate(setup.layers)]
        self._pipe: Any = GPipe(
            nn.Sequential(*layers),
            [*self.balance],
            devices=[setup.device] * setup.config.stages,
            chunks=setup.config.micro_batches,
            checkpoint=setup.config.checkpoint,
            deferred_batch_norm=True,
        )
        self.module = nn.Sequential(*self._pipe)
        self._optimizer = setup.make_optimizer(self.module.parameters())

    def train_step(self, inputs: Tree, targets: Tree, *, trace: bool = False) -> StepResult:
        """See `Method`."""
        assert not trace, "torchgpipe records no spans"
        start = perf_counter()
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        loss = self._setup.loss(self._pipe(inputs), targets)
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        return StepResult(loss.item(), start, perf_counter())

    def evaluate(self, inputs: Tree, targets: Tree) -> EvaluationResult:
        """See `Method`."""
        self._pipe.eval()
        with torch.no_grad():
            outputs = self._pipe(inputs)
            loss = self._setup.loss(outputs, targets).item()
        self._pipe.train()
        return EvaluationResult(loss, outputs)

    def cut(self, tree: Tree) -> list[Tree]:
        """The parts of `torch.chunk`."""
        tensors, skeleton = flatten(tree)
        parts = zip(*(t.chunk(self._setup.config.micro_batches) for t in tensors), strict=True)
        return [unflatten(list(part), skeleton) for part in parts]

    def sent_bytes(self, inputs: Tree, targets: Tree) -> None:
        """Nothing is sent: there is one process."""
