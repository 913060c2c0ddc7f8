"""The settings of a pipeline, spelled out once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from repro.gpipe.errors import check_counts
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.partition.partition import SMALLEST_LARGEST, Cost
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import check
from repro.io.untrusted import did_you_mean


@dataclass(frozen=True)
class PipelineConfig:
    """How a model is cut, scheduled and connected, in the paper's letters.

    Attributes:
        stages: K, at most the number of processes and of layers. 1 needs no process group. With
            `stages_per_rank` K is the number of ranks, and each of them runs that many stages.
        micro_batches: M, at most the mini-batch size N; 1 is naive model parallelism.
        replicas: D copies of the pipeline, each with mini-batches of its own. Gradients and running
            statistics are those of all mini-batches together.
        balance: how many layers each stage gets, or what to make even: "parameters", "uniform"
            counts, measured "time", for which several stages need a `sample`, or any cost(a, b) of
            a stage made of layers a to b-1. `print(pipe.cut)` shows the result.
        partitioner: a name in `partition.PARTITIONERS`: "smallest-largest", "minimum-variance" (the
            paper's) or "cumulative-share" (Lingvo's).
        checkpoint: recompute activations "always" (the paper), "never", or "except_last": not where
            B directly follows F, as in GPipe's last micro-batch.
        schedule: "gpipe", "gpipe-late", "1f1b", "naive" or "interleaved-1f1b".
        transport: of CPU tensors: "auto" is shared memory between processes of a Linux host and
            gloo otherwise; "shm" and "gloo" insist. GPUs use NCCL if each stage has its own, and
            otherwise, or with "gloo", pinned host memory.
        throttle: the speed of every link between neighbours, in either direction, to emulate a slow
            network on the CPUs of one Linux host. A link carries one message at a time, which
            arrives `latency` later. Without `overlap` its sender does not compute meanwhile.
        stages_per_rank: v, at least 2 for "interleaved-1f1b", otherwise 1. The model is cut into
            v K stages, and rank r runs stages r, r + K, r + 2 K and so on.
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

    @classmethod
    def of(cls, given: Sequence[Any], named: Mapping[str, Any]) -> "PipelineConfig":
        """Make a config from the arguments of a Pipeline: a config, or fields by place or name."""
        try:
            if len(given) == 1 and isinstance(given[0], PipelineConfig):
                return replace(given[0], **named)
            return cls(*given, **named)
        except TypeError as error:
            names = [field.name for field in fields(cls)]
            hints = [did_you_mean(name, names) for name in named if name not in names]
            mistake = str(error).partition("() ")[2]
            raise ValueError(f"Pipeline {mistake}{''.join(hints)}") from None

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
        """K x D."""
        return self.stages * self.replicas

    def make_schedule(self) -> Schedule:
        """Every action of every rank."""
        check_counts(
            stages=self.stages, replicas=self.replicas, stages_per_rank=self.stages_per_rank
        )
        counts = self.total_stages, self.micro_batches
        return make_schedule(self.schedule, *counts, self.checkpoint, self.stages_per_rank)

    def schedule_to_execute(self, layers: int) -> Schedule:
        """The schedule of a Pipeline of L layers, if it can be executed."""
        if self.schedule in SCHEDULES and not SCHEDULES[self.schedule].executed:
            raise ValueError(
                f"schedule={self.schedule!r}: can be drawn and simulated, but is not executed yet, "
                "since a process runs each backward as one action; try '1f1b'"
            )
        schedule = self.make_schedule()
        check(schedule)
        if self.stages_per_rank > 1 and layers < self.total_stages:
            raise ValueError(
                f"stages={self.stages}, stages_per_rank={self.stages_per_rank}: the model has "
                f"{layers} layers, and each stage needs at least one; choose fewer of either"
            )
        return schedule
