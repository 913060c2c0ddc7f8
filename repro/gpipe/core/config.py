"""The settings of a pipeline, spelled out once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.gpipe.errors import check_counts
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import make_schedule


@dataclass(frozen=True)
class PipelineConfig:
    """How a model is cut, scheduled and connected: arguments of `Pipeline`, which explains them.

    `Pipeline(layers, **config.arguments)` has them all.
    """

    stages: int
    micro_batches: int
    replicas: int = 1
    balance: str | Sequence[int] | Cost = "parameters"
    partitioner: str = SMALLEST_LARGEST
    recompute: str = "always"
    schedule: str = "gpipe"
    transport: str = "auto"
    throttle: LinkSpeed | None = None
    stages_per_rank: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings by name, as `Pipeline` takes them."""
        return {**vars(self)}

    @property
    def total_stages(self) -> int:
        """Stages of all ranks together; K where each rank runs one."""
        return self.stages * self.stages_per_rank

    @property
    def processes(self) -> int:
        """K x D."""
        return self.stages * self.replicas

    def make_schedule(self) -> Schedule:
        """Every action of every rank."""
        check_counts(
            stages=self.stages, replicas=self.replicas, stages_per_rank=self.stages_per_rank
        )
        counts = self.total_stages, self.micro_batches
        return make_schedule(self.schedule, *counts, self.recompute, self.stages_per_rank)
