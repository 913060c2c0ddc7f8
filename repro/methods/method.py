"""The interface of every way of training, and the setup that each one gets."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import PipelineConfig, StepResult, Weighted
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core import memory
from repro.gpipe.core.layers import Layer, as_layers, build
from repro.gpipe.partition.balance import choose
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.tree import Tree, batch_size, flatten, map_leaves, split
from repro.methods.traffic import SentBytes

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Setup:
    """A model and the options of its training, the same for every method."""

    # Of the unsplit model; factories are initialised from (seed, layer index).
    layers: Sequence[Layer]
    loss: Callable[[Any, Any], Tensor]  # (outputs, targets) of a micro-batch -> its mean loss
    # How the pipeline is cut and run. A peer takes K, M, the balance and the recompute mode of it;
    # the other settings are only for ours, and so is the balance "time".
    config: PipelineConfig
    sample: Tree  # inputs of one micro-batch
    device: torch.device  # of this process
    optimizer: MakeOptimizer
    seed: int = 0  # of initial weights, and of random numbers inside layers
    # Of processes that exchange more than neighbours do: the K stages (torch's pipelines), the D
    # replicas (ddp, fsdp), or the T processes that divide layers.
    group: dist.ProcessGroup | None = None
    trace: bool = False  # collect the spans of each step; only ours does

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The optimizer of a stage; None if the stage has no parameters."""
        parameters = list(parameters)
        return self.optimizer(parameters) if parameters else None

    def counts(self) -> tuple[int, ...]:
        """Layers per stage, for a peer.

        Raises:
            ValueError: one line: the balance is "time", which only our pipeline can measure.
        """
        return choose(as_layers(self.layers), self.config, _refuse_time).counts

    def build_stage(self, counts: Sequence[int], stage: int) -> nn.Sequential:
        """The layers of one stage, for a peer, with the keys of the unsplit nn.Sequential."""
        numbers = stage_layers(counts)[stage]
        layers = {str(n): build(self.layers[n], n, self.seed, self.device) for n in numbers}
        return nn.Sequential(OrderedDict(layers))

    def placed(self, tree: Tree) -> Tree:
        """The tree on the device of this process."""
        return map_leaves(Tensor, lambda t: t.to(self.device), tree)

    def shares(self, targets: Sequence[Tree]) -> list[float]:
        """The share of each micro-batch in the mean over the mini-batch."""
        weight = self.loss.weight if isinstance(self.loss, Weighted) else batch_size
        weights = [float(weight(part)) for part in targets]
        return [weight / sum(weights) for weight in weights]


class Method(ABC):
    """Training on one process; every method is called on every process that takes part."""

    module: nn.Module  # the layers of this process, with the keys of the unsplit nn.Sequential
    balance: tuple[int, ...]  # layers per stage
    _optimizer: torch.optim.Optimizer | None = None
    _sent: Mapping[str, int] = MappingProxyType({})  # by this process in the last step

    def __init__(self, setup: Setup, processes: int, rank: int) -> None:
        self._setup = setup
        self._processes = processes
        self._rank = rank
        self._channel = ControlChannel(processes, rank)
        # Of a pipeline, whose processes are its stages.
        self._is_first, self._is_last = rank == 0, rank == processes - 1

    @abstractmethod
    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """Clear gradients, run F and B of one mini-batch, and update.

        `start` and `end` of the result are those of this process.
        """

    def cut(self, tree: Tree) -> list[Tree]:
        """The micro-batches into which this library splits a mini-batch."""
        return split(tree, self._setup.config.micro_batches)

    def gather(self, value: Any) -> list[Any]:
        """Gather one value from each process on every process; also synchronises their devices."""
        self._now()
        return self._channel.all_gather(value)

    def peak_bytes(self, inputs: Tree, targets: Tree) -> list[int] | None:
        """Run one step and measure the peak memory of each stage; None if it cannot be measured."""
        return None

    def sent_bytes(self, inputs: Tree, targets: Tree) -> list[dict[str, int]] | None:
        """What each process sends in a step; None if that cannot be counted.

        It is called after a step, and may run one more to count.

        The keys are "activations", "gradients" or "messages" to a neighbour, or a collective such
        as "all-reduce", see `repro.methods.traffic`.
        """
        return self.gather(self._sent)

    def asynchrony(self) -> dict[str, list[int]]:
        """For each stage, where micro-batches update weights while others use older ones.

        "staleness" is the most updates between the F and the update of a micro-batch.
        """
        return {}

    def close(self) -> None:  # noqa: B027
        """Release threads and connections."""

    def _now(self) -> float:
        if self._setup.device.type == "cuda":
            torch.cuda.synchronize(self._setup.device)
        return perf_counter()

    def _resident(self, *data: Tree) -> Iterator[Tensor]:
        """What is in this process's memory between steps: of the stage, and of a mini-batch."""
        yield from map(self._occupied, memory.at_rest(self.module, self._optimizer))
        yield from flatten(data)[0]

    def _occupied(self, tensor: Tensor) -> Tensor:
        """A tensor of the memory that another one takes in this process."""
        return tensor


class Peer(Method):
    """One half of every adapter of a library; its subclass runs F and B."""

    # Whether gradients are freed between steps, instead of set to zero.
    frees_gradients: ClassVar[bool] = True
    # Classes of tensors that run their operators on other tensors, which are counted.
    wrappers: ClassVar[tuple[type, ...]] = ()

    def train_step(self, inputs: Tree, targets: Tree) -> StepResult:
        """See `Method`."""
        start = self._now()
        if self._optimizer is not None:
            self._optimizer.zero_grad(set_to_none=self.frees_gradients)
        loss = self._forward_backward(inputs, targets)
        if self._optimizer is not None:
            self._optimizer.step()
        end = self._now()
        return StepResult(self._of_all(loss), start, end)

    def sent_bytes(self, inputs: Tree, targets: Tree) -> list[dict[str, int]] | None:
        """See `Method`; it runs one more step."""
        with SentBytes(self._processes, self.wrappers) as sent:
            self.train_step(inputs, targets)
        return self.gather(sent.counts)

    @abstractmethod
    def _forward_backward(self, inputs: Tree, targets: Tree) -> float:
        """F and B of a mini-batch; returns this process's part of the loss."""

    def _of_all(self, loss: float) -> float:
        """The loss of the mini-batch by this process's part of it."""
        return loss


def _refuse_time() -> Any:
    raise ValueError(
        "balance = 'time' with a peer library: it gets the cut of the run with library='repro', "
        "which is missing here; plan that run with it, or set balance='parameters'"
    )
