"""torch.distributed.pipelining as a method: `ScheduleGPipe`, each stage wrapped in `torch.utils.checkpoint`.

Static mode: shapes are given, learnt here stage after stage on one real micro-batch. In dynamic
mode the library learns them by training on memory that nobody has written, which ruins batch norm's
running statistics. A boundary crosses as a flat tuple of tensors, which is all that the library
sends.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves, split, unflatten
from repro.methods.method import Setup


def groups(stages: int, timeouts: Sequence[timedelta]) -> list[Any]:
    """Process groups of the first K processes, one for each timeout of a message.

    Every process of the world must call this, also those without a stage: the library refuses a
    group with more processes than stages, and a group made by its members alone hangs where they
    made different numbers before.
    """
    return [dist.new_group(range(stages), timeout=timeout) for timeout in timeouts]


class Pipelining:
    """One stage under `torch.distributed.pipelining`; see `Method`."""

    def __init__(self, setup: Setup) -> None:
        assert setup.group is not None
        self._setup, K = setup, setup.stages
        self._rank = dist.get_rank()
        self._wire = Wire(K, self._rank)
        self.balance = setup.counts()
        ends = [0, *accumulate(self.balance)]
        own = range(ends[self._rank], ends[self._rank + 1])
        layers = {str(n): build(setup.layers[n], n, setup.seed, setup.device) for n in own}
        self.module = nn.Sequential(OrderedDict(layers))
        self._optimizer = setup.make_optimizer(self.module.parameters())
        inputs, skeleton = self._arriving()
        self._run = _Flat(self.module, skeleton, recompute=setup.checkpoint == "always")
        outputs = self._leaving(inputs)
        stage = PipelineStage(
            self._run,
            self._rank,
            K,
            setup.device,
            input_args=inputs,
            output_args=outputs,
            group=setup.group,
        )
        self._schedule = ScheduleGPipe(stage, setup.micro_batches, loss_fn=self._loss)

    def train_step(self, inputs: Tree, targets: Tree, *, trace: bool = False) -> StepResult:
        """One step; see `Method`."""
        assert not trace, "torch.distributed.pipelining records no spans"
        losses: list[Tensor] = []
        start = self._now()
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        self._schedule.step(**self._parts(inputs, targets), losses=losses, return_outputs=False)
        if self._optimizer is not None:
            self._optimizer.step()
        return StepResult(end=self._now(), start=start, loss=self._mean(losses))

    def evaluate(self, inputs: Tree, targets: Tree) -> EvaluationResult:
        """Forward only; see `Method`."""
        losses: list[Tensor] = []
        self.module.eval()
        with torch.no_grad():
            outputs = self._schedule.eval(**self._parts(inputs, targets), losses=losses)
        self.module.train()
        whole = unflatten(list(outputs), self._run.left) if self._is_last else None
        return EvaluationResult(self._mean(losses), whole)

    def cut(self, tree: Tree) -> list[Tree]:
        """As the library itself cuts, by `torch.tensor_split`; see `Method`."""
        return split(tree, self._setup.micro_batches)

    def gather(self, value: Any) -> list[Any]:
        """One value from each stage, past the library; see `Method`."""
        self._now()
        return self._wire.all_gather(value)

    def peak_bytes(self, inputs: Tree, targets: Tree, limit: int | None = None) -> None:
        """Not measured."""

    def close(self) -> None:
        """Nothing to give back: the group is its maker's."""

    @property
    def _is_last(self) -> bool:
        return self._rank == self._setup.stages - 1

    def _now(self) -> float:
        if self._setup.device.type == "cuda":
            torch.cuda.synchronize(self._setup.device)
        return perf_counter()

    def _parts(self, inputs: Tree, targets: Tree) -> dict[str, Any]:
        """The micro-batches that this stage reads, as the schedule takes them."""
        parts: dict[str, Any] = {}
        if self._rank == 0:
            parts["arg_mbs"] = [tuple(flatten(part)[0]) for part in self.cut(self._here(inputs))]
        if self._is_last:
            parts["target_mbs"] = self.cut(self._here(targets))
        return parts

    def _here(self, tree: Tree) -> Tree:
        return map_leaves(Tensor, lambda t: t.to(self._setup.device), tree)

    def _loss(self, outputs: tuple[Tensor, ...], targets: Tree) -> Tensor:
        return self._setup.loss(unflatten(list(outputs), self._run.left), targets)

    def _mean(self, losses: list[Tensor]) -> float:
        """Mean over the micro-batches, which the library takes to be of equal size, on every stage."""
        return self._wire.from_last(torch.stack(losses).mean().item() if losses else 0.0)

    def _arriving(self) -> tuple[tuple[Tensor, ...], Tree]:
        """What one micro-batch brings to this stage, and its structure."""
        if self._rank == 0:
            tensors, skeleton = flatten(self._here(self._setup.sample))
            return tuple(tensors), skeleton
        arrived, skeleton = self._wire.recv_object(self._rank - 1)
        return tuple(t.to(self._setup.device).requires_grad_(flag) for t, flag in arrived), skeleton

    def _leaving(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What it sends on; buffers and generators stay as they were."""
        kept = [(buffer, buffer.clone()) for buffer in self.module.buffers()]
        devices = [self._setup.device] if self._setup.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            outputs = self._run.plainly(*inputs)
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)
        if not self._is_last:
            sent = [(t.detach().cpu(), t.requires_grad) for t in outputs]
            self._wire.send_object((sent, self._run.left), self._rank + 1)
        return outputs


class _Flat(nn.Module):
    """A stage's layers from a flat tuple of tensors to one."""

    def __init__(self, layers: nn.Sequential, skeleton: Tree, *, recompute: bool) -> None:
        super().__init__()
        self.layers = layers
        self.left: Tree = None  # structure of the outputs
        self._skeleton = skeleton
        self._recompute = recompute

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The stage, recomputed in the backward pass if asked."""
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self.plainly, *tensors, use_reentrant=False)
        return self.plainly(*tensors)

    def plainly(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The stage itself."""
        outputs, self.left = flatten(self.layers(unflatten(list(tensors), self._skeleton)))
        return tuple(outputs)
