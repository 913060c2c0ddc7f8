"""torch.distributed.pipelining as a method: its schedules, with `torch.utils.checkpoint`.

The library gets the shapes at the boundaries (its static mode). In its dynamic mode it learns them
by running layers on uninitialised memory, which ruins the running statistics of batch norm.
"""

from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from repro.gpipe.tree import Tree, flatten
from repro.methods.method import Peer, Setup
from repro.methods.peers.flat import FlatStage, boundaries


class Pipelining(Peer):
    """The stages of one rank under `torch.distributed.pipelining`.

    `split` is one of its schedules that split backwards. A rank has two stages there, of which some
    are on the ranks in a V: the first rank has the first stage and the last one.
    """

    def __init__(self, setup: Setup, split: str = "") -> None:
        assert setup.group is not None
        if split:
            two = replace(setup.config, schedule="interleaved-1f1b", stages_per_rank=2)
            setup = replace(setup, config=two)
        config = setup.config
        K, total = config.stages, config.total_stages
        super().__init__(setup, K, dist.get_rank())
        self.balance = setup.counts()
        ranks = [*range(K)]
        in_a_v = split in ("ZBVZeroBubble", "DualPipeV")
        rank_of = ranks + ranks[::-1] if in_a_v else ranks * config.stages_per_rank
        own = [number for number in range(total) if rank_of[number] == self._rank]
        self._is_first, self._is_last = 0 in own, total - 1 in own
        passed = boundaries(setup.layers, setup.sample, self.balance)
        layers: dict[str, nn.Module] = {}
        stages: list[Any] = []
        for number in own:
            part = setup.build_stage(self.balance, number)
            layers |= part.named_children()
            (given, skeleton), (returned, _) = passed[number : number + 2]
            recompute = config.recompute == "always"
            self._last = FlatStage(part, skeleton, recompute=recompute, splits=bool(split))
            stages.append(
                PipelineStage(
                    self._last,
                    number,
                    total,
                    setup.device,
                    input_args=tuple(given),
                    output_args=tuple(returned),
                    group=setup.group,
                )
            )
        self.module = nn.Sequential(OrderedDict(layers))
        self._optimizer = setup.make_optimizer(self.module.parameters())
        kind: Any = get_schedule_class(split or config.schedule.replace("-", ""))
        scheduled = stages if config.stages_per_rank > 1 else stages[0]
        self._schedule: Any = kind(scheduled, config.micro_batches, loss_fn=self._loss)

    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        losses: list[Tensor] = []
        self._schedule.step(**self._parts(inputs, targets), losses=losses, return_outputs=False)
        return _mean(losses)

    def _of_all(self, loss: float) -> float:
        return sum(self._channel.all_gather(loss))  # 0.0 where the last stage is not

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


# Backwards in two parts, in a fixed order.
ZeroBubble = partial(Pipelining, split="InterleavedZeroBubble")
ZeroBubbleV = partial(Pipelining, split="ZBVZeroBubble")
DualPipeV = partial(Pipelining, split="DualPipeV")
