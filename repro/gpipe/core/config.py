"""The settings of a pipeline, spelled out once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import check_counts, make_schedule


@dataclass(frozen=True)
class PipelineConfig:
    """How a model is cut, scheduled and connected, in the paper's letters.

    `Pipeline` runs it, `repro.costs` counts its memory, `repro.methods` trains with it, and a
    `RunSpec` of the harness has one.

    Attributes:
        stages: K, the number of ranks, which each run one stage or `stages_per_rank` of them.
        micro_batches: M.
        replicas: D copies of the pipeline.
        tensor_parallel: T processes that divide the matrices of each stage.
        balance: layers of each stage, or what to make even: "parameters", "uniform" counts,
            measured "time", or any cost(a, b) of a stage of the layers a to b-1.
        partitioner: a name in `partition.PARTITIONERS`.
        checkpoint: recompute activations "always", for all but the last micro-batch
            ("except_last"), or "never".
        schedule: a name in `repro.gpipe.schedule.kinds.SCHEDULES`.
        transport: of messages between processes: "auto", "shm" or "gloo".
        throttle: limit of the links between stages; None: as fast as the machine.
        stages_per_rank: 1, or at least 2 for an interleaved schedule.
    """

    stages: int
    micro_batches: int
    replicas: int = 1
    balance: str | Sequence[int] | Cost = "parameters"
    partitioner: str = SMALLEST_LARGEST
    checkpoint: str = "always"
    schedule: str = "gpipe"
    transport: str = "auto"
    throttle: LinkSpeed | None = None
    stages_per_rank: int = 1
    tensor_parallel: int = 1

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings by name, as `Pipeline` takes them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total_stages(self) -> int:
        """Stages of all ranks together; K where each rank runs one."""
        return self.stages * self.stages_per_rank

    @property
    def processes(self) -> int:
        """K x D x T."""
        return self.stages * self.replicas * self.tensor_parallel

    def make_schedule(self) -> Schedule:
        """Every action of every rank.

        Raises:
            ValueError: one line, for an unknown schedule, or for K, M or the stages of a rank out
                of range.
        """
        check_counts(stages=self.stages, stages_per_rank=self.stages_per_rank)
        return make_schedule(
            self.schedule,
            self.total_stages,
            self.micro_batches,
            self.checkpoint,
            self.stages_per_rank,
        )
