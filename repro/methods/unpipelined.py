"""What methods without a pipeline share: every process runs all layers, micro-batch by micro-batch.

Each of the D replicas trains on its part of the mini-batch, cut into M micro-batches whose
gradients are accumulated. Random numbers in layers belong to (seed, step, micro-batch, layer), as
in our pipeline with D replicas, so that both drop the same activations.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.core import memory
from repro.gpipe.core.layers import build
from repro.gpipe.core.loss import MeanLoss
from repro.gpipe.core.microbatch import Tree, batch_size, flatten, gather
from repro.gpipe.exact import rng
from repro.methods.method import Method, Setup


class SeededLayers(nn.Sequential):
    """All layers, each with the random numbers of its step, micro-batch and place.

    Attributes:
        step: number of the training step.
        micro_batch: counted over all replicas.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(
            OrderedDict(
                (str(n), build(layer, n, setup.seed, setup.device))
                for n, layer in enumerate(setup.layers)
            )
        )
        self.step = 0
        self.micro_batch = 0
        self._seed = setup.seed
        self._device = setup.device
        self._recompute = setup.config.checkpoint == "always"

    def forward(self, value: Tree) -> Tree:
        """Run the layers; each is recomputed in the backward if the setup says "always"."""
        for n, layer in enumerate(self):
            seed = rng.hashed(self._seed, self.step, self.micro_batch, n)
            run = partial(self._seeded, seed, layer)
            if self._recompute and torch.is_grad_enabled():
                # The function seeds the generators itself, so none needs to be kept.
                value = checkpoint(run, value, use_reentrant=False, preserve_rng_state=False)
            else:
                value = run(value)
        return value

    def _seeded(self, seed: int, layer: nn.Module, value: Tree) -> Tree:
        rng.reseed(seed, self._device)
        return layer(value)


class Unpipelined(Method):
    """One of the processes of a group that all run every layer.

    Attributes:
        meter: of the CPU's memory.
        frees_gradients: whether gradients are freed between steps, instead of set to zero.
    """

    meter: ClassVar[type[memory.LiveBytes]] = memory.LiveBytes
    frees_gradients: ClassVar[bool] = True

    def __init__(self, setup: Setup) -> None:
        assert setup.group is not None
        super().__init__(setup, dist.get_world_size(setup.group), dist.get_rank(setup.group))
        self._group = setup.group
        self._replicas = setup.config.replicas
        self._replica = self._rank if self._replicas > 1 else 0
        self.balance = (len(setup.layers),)
        self.module = self._layers = SeededLayers(setup)
        self._model = self._wrapped(self._layers)
        # Of the wrapped model, whose parameters may be other ones.
        self._optimizer = setup.make_optimizer(self._model.parameters())

    def _wrapped(self, module: SeededLayers) -> nn.Module:
        """The module as the library trains it."""
        raise NotImplementedError

    def _micro_batch(self, *, last: bool) -> AbstractContextManager[Any]:
        """Around forward and backward of a micro-batch, the last one of the step or another."""
        return nullcontext()

    def train_step(self, inputs: Tree, targets: Tree, *, trace: bool = False) -> StepResult:
        """See `Method`."""
        assert not trace, "no spans are recorded"
        M = self._setup.config.micro_batches
        start = self._now()
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=self.frees_gradients)
        head = self._head(targets, batch_size(inputs))
        loss = 0.0
        with rng.preserved(self._setup.device):
            for i, part in enumerate(self.cut(self._to_device(inputs))):
                self._layers.micro_batch = self._replica * M + i
                with self._micro_batch(last=i == M - 1):
                    share = head(i, self._model(part))
                    # The library takes the mean over processes, and shares are made for a sum.
                    (share * self._replicas).backward()
                loss += share.item()
        if self._optimizer is not None:
            self._optimizer.step()
        self._layers.step += 1
        return StepResult(self._total(loss), start, self._now())

    def evaluate(self, inputs: Tree, targets: Tree) -> EvaluationResult:
        """Run only F; the outputs are of this replica's part."""
        head = self._head(targets, batch_size(inputs))
        self.module.eval()
        with torch.no_grad(), rng.preserved(self._setup.device):
            outputs = [self._model(part) for part in self.cut(self._to_device(inputs))]
            loss = sum(head(i, output).item() for i, output in enumerate(outputs))
        self.module.train()
        return EvaluationResult(self._total(loss), gather(outputs))

    def peak_bytes(self, inputs: Tree, targets: Tree, limit: int | None = None) -> list[int]:
        """Peak memory of the fullest process."""
        resident = self._resident(inputs, targets)
        with memory.peak_memory(self._setup.device, resident, limit, self.meter) as peak:
            self.train_step(inputs, targets)
        return [max(self.gather(peak.value))]

    def _resident(self, inputs: Tree, targets: Tree) -> Iterator[Tensor]:
        """What is in this process's memory between steps."""
        yield from map(self._occupied, self.module.parameters())
        yield from self.module.buffers()
        yield from (self._occupied(p.grad) for p in self.module.parameters() if p.grad is not None)
        if self._optimizer is not None:
            states = [list(state.values()) for state in self._optimizer.state.values()]
            yield from map(self._occupied, flatten(states)[0])
        yield from flatten((inputs, targets))[0]

    def _occupied(self, tensor: Tensor) -> Tensor:
        """A tensor of the memory that another one takes in this process."""
        return tensor

    def _head(self, targets: Tree, examples: int) -> MeanLoss:
        """Weighs the losses of this replica's micro-batches in the mean over all replicas."""
        M = self._setup.config.micro_batches
        return MeanLoss(self._setup.loss, self._to_device(targets), examples, M, self._total)

    def _total(self, value: float) -> float:
        """The sum of a number over all replicas."""
        if self._replicas == 1:
            return value
        total = torch.tensor([value], dtype=torch.float64, device=self._setup.device)
        dist.all_reduce(total, group=self._group)
        return total.item()
