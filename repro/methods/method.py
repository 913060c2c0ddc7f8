"""What every way of training looks like to the harness, and what each is given."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import EvaluationResult, LinkSpeed, StepResult
from repro.gpipe.core.layers import Layer, as_layers
from repro.gpipe.core.microbatch import Tree
from repro.gpipe.partition.balance import choose

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Setup:
    """A model and how to train it, the same for every method.

    Attributes:
        layers: of the unsplit model; factories are initialised from (seed, layer index).
        loss: (outputs, targets) of a micro-batch -> its mean loss.
        stages: K.
        micro_batches: M.
        sample: inputs of one micro-batch.
        device: of this process.
        replicas: D.
        balance: layers per stage, or a rule of `repro.gpipe.Pipeline`; "time" is ours alone.
        checkpoint: which micro-batches are recomputed.
        schedule: a name in `repro.gpipe.schedule.kinds.EXECUTED`; ours alone.
        transport: as `repro.gpipe.Pipeline` takes it; ours alone.
        throttle: of the links between stages, as `repro.gpipe.Pipeline` takes it; ours alone, peers
            are refused.
        seed: of initial weights, and of what is random inside layers.
        optimizer: makes it for this process's parameters; None leaves gradients where they are.
        group: the K processes, for a library that wants a process group.
        allow_nonfinite: train on where loss or gradients are inf or nan; only ours ever refuses.
    """

    layers: Sequence[Layer]
    loss: Callable[[Any, Any], Tensor]
    stages: int
    micro_batches: int
    sample: Tree
    device: torch.device
    replicas: int = 1
    balance: str | tuple[int, ...] = "uniform"
    checkpoint: str = "always"
    schedule: str = "gpipe"
    transport: str = "auto"
    throttle: LinkSpeed | None = None
    seed: int = 0
    optimizer: MakeOptimizer | None = None
    group: dist.ProcessGroup | None = None
    allow_nonfinite: bool = False

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer | None:
        """The optimizer of these parameters; None without one, and where a stage has no parameters to train."""
        own = list(parameters)
        return self.optimizer(own) if self.optimizer is not None and own else None

    def counts(self) -> tuple[int, ...]:
        """Layers per stage, for a peer.

        Raises:
            ValueError: for balance "time", which a peer takes from our own measurement.
        """
        return choose(
            as_layers(self.layers), self.stages, self.balance, "smallest-largest", _no_profile
        ).counts


class Method(Protocol):
    """One process's part of training; everything is called on every process that takes part."""

    @property
    def module(self) -> nn.Module:
        """The layers that live here, their parameters, gradients and buffers under the unsplit nn.Sequential's keys."""
        ...

    @property
    def balance(self) -> tuple[int, ...]:
        """Layers per stage."""
        ...

    def train_step(self, inputs: Tree, targets: Tree, *, trace: bool = False) -> StepResult:
        """Clear gradients, all forwards and backwards of one mini-batch, update; `start` and `end` are this process's.

        Without an optimizer gradients are neither cleared nor applied.
        """
        ...

    def evaluate(self, inputs: Tree, targets: Tree) -> EvaluationResult:
        """Forward only, in evaluation mode."""
        ...

    def cut(self, tree: Tree) -> list[Tree]:
        """The micro-batches that this library makes of a mini-batch."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """One value from each process, on every process; a barrier too, this process's device included."""
        ...

    def peak_bytes(self, inputs: Tree, targets: Tree, limit: int | None = None) -> list[int] | None:
        """Peak memory per stage over one step, which it runs; None where nobody measures it.

        Raises:
            MemoryError, torch.OutOfMemoryError: where a stage takes more than `limit` bytes.
        """
        ...

    def close(self) -> None:
        """Give threads and connections back."""
        ...


def _no_profile() -> Any:
    raise ValueError(
        "balance = 'time' with a peer library: it gets the cut of the run with library='repro', "
        "which is missing here; plan that run beside it, or set balance='parameters'"
    )
