"""What a training step and an evaluation return on every rank."""

from dataclasses import dataclass, field

from repro.gpipe.core.loss import Metrics
from repro.gpipe.schedule.timeline import Timeline
from repro.gpipe.tree import Tree


@dataclass(frozen=True)
class StepResult:
    """What a training step returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        start: when this rank began, in seconds of time.perf_counter on the first rank of all.
        end: when it ended, on the same clock; its device was done then.
        timeline: spans of all stages of this replica, if traced.
        metrics: the metrics that the loss returned, summed over the same mini-batches.
    """

    loss: float
    start: float
    end: float
    timeline: Timeline | None = None
    metrics: Metrics = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """From the first start to the last end of any rank if traced, otherwise of this rank."""
        if self.timeline is None:
            return self.end - self.start
        return self.timeline.step_time


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        outputs: of the last stage, on its rank; None on the others. Tensors are joined, anything
            else is that of the first micro-batch: `len(x)` is its size, not N.
        metrics: the metrics that the loss returned, summed over the same mini-batches.
    """

    loss: float
    outputs: Tree | None
    metrics: Metrics = field(default_factory=dict)
