"""torch.distributed.pipelining as a method: its schedules, with `torch.utils.checkpoint`.

The library gets the shapes at the boundaries (its static mode): they are learnt stage after stage
on one real micro-batch. In its dynamic mode the library learns them by running layers on
uninitialised memory, which ruins the running statistics of batch norm. The library sends only flat
tuples of tensors, so nested values are flattened at a boundary.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.utils.checkpoint import checkpoint

from repro.gpipe import EvaluationResult, StepResult
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves, split, unflatten
from repro.methods.method import Setup
from repro.methods.traffic import SentBytes


def groups(stages: int, timeouts: Sequence[timedelta]) -> list[Any]:
    """Process groups of the first K processes, one for each timeout of a message.

    Every process of the world must call this, also those without a stage. The library refuses a
    group with more processes than stages. A group that only its members make hangs if they have
    made different numbers of groups before.
    """
    return [dist.new_group(range(stages), timeout=timeout) for timeout in timeouts]


class Pipelining:
    """The stages of one rank under `torch.distributed.pipelining`; see `Method`.

    The schedule of the setup chooses the library's class: "gpipe", "1f1b", or "interleaved-1f1b",
    whose ranks hold several stages each.
    """

    def __init__(self, setup: Setup) -> None:
        assert setup.group is not None
        self._setup, config = setup, setup.config
        self._rank = dist.get_rank()
        self._wire = Wire(config.stages, self._rank)
        self.balance = setup.counts()
        layers: dict[str, nn.Module] = {}
        stages: list[Any] = []
        for number in range(self._rank, config.total_stages, config.stages):
            part = setup.build_stage(self.balance, number)
            layers |= part.named_children()
            stages.append(self._stage(number, part))
        self.module = nn.Sequential(OrderedDict(layers))
        self._optimizer = setup.make_optimizer(self.module.parameters())
        settings: dict[str, Any] = {
            "n_microbatches": config.micro_batches,
            "loss_fn": self._loss,
        }
        self._schedule: Any
        if config.schedule == "interleaved-1f1b":
            self._schedule = ScheduleInterleaved1F1B(stages, **settings)
        elif config.schedule == "1f1b":
            self._schedule = Schedule1F1B(stages[0], **settings)
        else:
            self._schedule = ScheduleGPipe(stages[0], **settings)

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
        """Run only F; see `Method`."""
        losses: list[Tensor] = []
        self.module.eval()
        with torch.no_grad():
            outputs = self._schedule.eval(**self._parts(inputs, targets), losses=losses)
        self.module.train()
        whole = self._unflat(outputs) if self._is_last else None
        return EvaluationResult(self._mean(losses), whole)

    def cut(self, tree: Tree) -> list[Tree]:
        """The parts of `torch.tensor_split`, as in the library; see `Method`."""
        return split(tree, self._setup.config.micro_batches)

    def gather(self, value: Any) -> list[Any]:
        """One value from each stage, over our own control channel; see `Method`."""
        self._now()
        return self._wire.all_gather(value)

    def peak_bytes(self, inputs: Tree, targets: Tree, limit: int | None = None) -> None:
        """Not measured."""

    def sent_bytes(self, inputs: Tree, targets: Tree) -> list[dict[str, int]]:
        """Bytes of the messages that each stage sends; see `Method`."""
        with SentBytes(self._setup.config.stages) as sent:
            self.train_step(inputs, targets)
        return self.gather(sent.counts)

    def close(self) -> None:
        """Nothing to release: the group belongs to its maker."""

    @property
    def _is_last(self) -> bool:
        return self._rank == self._setup.config.stages - 1

    def _now(self) -> float:
        if self._setup.device.type == "cuda":
            torch.cuda.synchronize(self._setup.device)
        return perf_counter()

    def _parts(self, inputs: Tree, targets: Tree) -> dict[str, Any]:
        """The micro-batches that this stage reads, as arguments of the schedule."""
        parts: dict[str, Any] = {}
        if self._rank == 0:
            parts["arg_mbs"] = [
                tuple(flatten(part)[0]) for part in self.cut(self._to_device(inputs))
            ]
        if self._is_last:
            parts["target_mbs"] = self.cut(self._to_device(targets))
        return parts

    def _to_device(self, tree: Tree) -> Tree:
        return map_leaves(Tensor, lambda t: t.to(self._setup.device), tree)

    def _loss(self, outputs: tuple[Tensor, ...], targets: Tree) -> Tensor:
        return self._setup.loss(self._unflat(outputs), targets)

    def _unflat(self, outputs: Sequence[Tensor]) -> Tree:
        """What the last layer returned."""
        return unflatten(list(outputs), self._last_skeleton)

    def _mean(self, losses: list[Tensor]) -> float:
        """Mean loss on every stage; the library assumes micro-batches of equal size."""
        return self._wire.from_last(torch.stack(losses).mean().item() if losses else 0.0)

    def _stage(self, number: int, layers: nn.Sequential) -> PipelineStage:
        """A stage of the library; the stages before must be made at the same time."""
        config = self._setup.config
        inputs, skeleton = self._example_inputs(number)
        run = _Flat(layers, skeleton, recompute=config.checkpoint == "always")
        outputs = self._example_outputs(run, inputs)
        if number + 1 < config.total_stages:
            sent = [(t.detach().cpu(), t.requires_grad) for t in outputs]
            self._wire.send_object((sent, run.output_skeleton), (number + 1) % config.stages)
        self._last_skeleton = run.output_skeleton
        return PipelineStage(
            run,
            number,
            config.total_stages,
            self._setup.device,
            input_args=inputs,
            output_args=outputs,
            group=self._setup.group,
        )

    def _example_inputs(self, number: int) -> tuple[tuple[Tensor, ...], Tree]:
        """The tensors that a stage gets for the sample, and their structure."""
        if number == 0:
            tensors, skeleton = flatten(self._to_device(self._setup.sample))
            return tuple(tensors), skeleton
        received, skeleton = self._wire.recv_object((number - 1) % self._setup.config.stages)
        inputs = [t.to(self._setup.device).requires_grad_(flag) for t, flag in received]
        return tuple(inputs), skeleton

    def _example_outputs(self, run: "_Flat", inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What a stage makes of the sample; buffers and generators are restored."""
        saved = [(buffer, buffer.clone()) for buffer in run.buffers()]
        devices = [self._setup.device] if self._setup.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            outputs = run.run_layers(*inputs)
        with torch.no_grad():
            for buffer, before in saved:
                buffer.copy_(before)
        return outputs


class _Flat(nn.Module):
    """A stage's layers as a function from a flat tuple of tensors to a flat tuple."""

    def __init__(self, layers: nn.Sequential, skeleton: Tree, *, recompute: bool) -> None:
        super().__init__()
        self.layers = layers
        self.output_skeleton: Tree = None
        self._skeleton = skeleton
        self._recompute = recompute

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the layers; they are recomputed in the backward pass if `recompute`."""
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self.run_layers, *tensors, use_reentrant=False)
        return self.run_layers(*tensors)

    def run_layers(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the layers."""
        outputs = self.layers(unflatten(list(tensors), self._skeleton))
        flat, self.output_skeleton = flatten(outputs)
        return tuple(flat)
