"""Peak memory of every rank, parameters and operators of every layer: counted without a run.

Each distinct layer is traced once, on fake tensors. A stage uses them in the order of the same
schedule value that the engine executes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from repro.costs.counter import Counter, LayerCost, Optimizer
from repro.costs.stage_memory import Messages, StageMemory, Task, micro_batch, peak_memory
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.layers import Layer
from repro.gpipe.core.loss import Loss
from repro.gpipe.core.microbatch import Tree, batch_size, sizes
from repro.gpipe.partition.balance import choose


@dataclass(frozen=True)
class Counted:
    """Result of `count`: memory of each rank at its peak in bytes, and costs of each layer.

    A rank is a stage where each holds one.
    """

    stages: tuple[StageMemory, ...]
    balance: tuple[int, ...]
    layers: tuple[LayerCost, ...]

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return sum(layer.parameters for layer in self.layers)


def count(
    layers: Sequence[Layer],
    loss: Loss,
    inputs: Tree,
    targets: Tree,
    config: PipelineConfig,
    *,
    optimizer: Optimizer | None = None,
    messages: Messages | None = None,
    device: str = "cpu",
) -> Counted:
    """Count one training step after the first, when gradients and optimizer state exist already.

    Layers, loss, inputs, targets and config are as `Pipeline` takes them, but for the balance
    "time". Of the mini-batch only shapes and types matter; see `repro.costs.mini_batch`.

    Raises:
        ValueError: one line: an argument is out of range, or a layer cannot be counted.
    """
    if config.balance == "time":
        raise ValueError(
            "balance='time': nothing is run here, so nothing is timed; try 'parameters' or layer "
            "counts"
        )
    counter = Counter(layers, loss, optimizer, device=device)
    plan = config.make_schedule()
    cut = choose(layers, plan.stages, config.balance, config.partitioner, lambda: None)  # pyright: ignore[reportArgumentType]
    tasks = Task.of_ranks(plan, cut.counts, inputs, targets, messages or Messages())
    memory = [peak_memory(counter, task) for task in tasks]
    part = micro_batch(inputs, sizes(batch_size(inputs), config.micro_batches)[0])
    costs = [counter.cost(index, part) for index in range(len(counter))]
    return Counted(tuple(memory), cut.counts, tuple(costs))
