"""torch.distributed.pipelining as a method: its schedules, with `torch.utils.checkpoint`.

The library gets the shapes at the boundaries (its static mode): they are learnt stage after stage
on one real micro-batch. In its dynamic mode the library learns them by running layers on
uninitialised memory, which ruins the running statistics of batch norm.
"""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from repro.gpipe.tree import Tree, flatten
from repro.methods.method import Peer, Setup
from repro.methods.peers.flat import learn


def groups(stages: int, timeouts: Sequence[timedelta]) -> list[Any]:
    """Process groups of the first K processes, one for each timeout of a message.

    Every process of the world must call this, also those without a stage. The library refuses a
    group with more processes than stages. A group that only its members make hangs if they have
    made different numbers of groups before.
    """
    return [dist.new_group(range(stages), timeout=timeout) for timeout in timeouts]


class Pipelining(Peer):
    """The stages of one rank under `torch.distributed.pipelining`."""

    def __init__(self, setup: Setup) -> None:
        assert setup.group is not None
        config = setup.config
        super().__init__(setup, config.stages, dist.get_rank())
        self.balance = setup.counts()
        layers: dict[str, nn.Module] = {}
        stages: list[Any] = []
        for number in range(self._rank, config.total_stages, config.stages):
            part = setup.build_stage(self.balance, number)
            layers |= part.named_children()
            self._last, given, returned = learn(setup, self._channel, number, part)
            stages.append(
                PipelineStage(
                    self._last,
                    number,
                    config.total_stages,
                    setup.device,
                    input_args=given,
                    output_args=returned,
                    group=setup.group,
                )
            )
        self.module = self._model = nn.Sequential(OrderedDict(layers))
        self._optimizer = setup.make_optimizer(self.module.parameters())
        kind: Any = get_schedule_class(config.schedule.replace("-", ""))
        own = stages if config.stages_per_rank > 1 else stages[0]
        self._schedule: Any = kind(own, config.micro_batches, loss_fn=self._loss)

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        losses: list[Tensor] = []
        self._schedule.step(**self._parts(inputs, targets), losses=losses, return_outputs=False)
        return _mean(losses)

    def _forward(self, inputs: Tree, targets: Tree) -> tuple[float, Tree]:
        losses: list[Tensor] = []
        outputs = self._schedule.eval(**self._parts(inputs, targets), losses=losses)
        return _mean(losses), self._last.unflat(outputs) if self._is_last else None

    def _of_all(self, loss: float) -> float:
        return self._channel.from_last(loss)

    def _parts(self, inputs: Tree, targets: Tree) -> dict[str, Any]:
        """The micro-batches that this stage reads, as arguments of the schedule."""
        parts: dict[str, Any] = {}
        if self._is_first:
            cut = self.cut(self._setup.placed(inputs))
            parts["arg_mbs"] = [tuple(flatten(part)[0]) for part in cut]
        if self._is_last:
            parts["target_mbs"] = self.cut(self._setup.placed(targets))
        return parts

    def _loss(self, outputs: tuple[Tensor, ...], targets: Tree) -> Tensor:
        return self._setup.loss(self._last.unflat(outputs), targets)


def _mean(losses: list[Tensor]) -> float:
    """Of the last stage; the library assumes micro-batches of equal size."""
    return torch.stack(losses).mean().item() if losses else 0.0
