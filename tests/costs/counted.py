"""Counted memory of the ranks of a pipeline that is cut into stages of as many layers."""

from collections.abc import Sequence
from typing import Any

from repro.costs.counter import Counter, Optimizer
from repro.costs.stage_memory import Messages, StageMemory, Task, peak_memory
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.partition.balance import choose


def memory_of_ranks(
    layers: Sequence[Any],
    loss: Any,
    data: tuple[Any, Any],
    config: PipelineConfig,
    optimizer: Optimizer | None,
    messages: Messages,
    device: str = "cpu",
) -> list[StageMemory]:
    counter = Counter(layers, loss, optimizer, device=device)
    schedule = config.make_schedule()
    no_profile: Any = None
    counts = choose(layers, schedule.stages, "uniform", config.partitioner, no_profile).counts
    tasks = Task.of_ranks(schedule, counts, *data, messages)
    return [peak_memory(counter, task) for task in tasks]
