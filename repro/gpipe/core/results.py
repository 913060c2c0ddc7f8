"""What a step and an evaluation return."""

from dataclasses import dataclass

from repro.gpipe.core.microbatch import Tree
from repro.gpipe.schedule.timeline import Timeline


@dataclass(frozen=True)
class StepResult:
    """What a training step returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        start: when this stage began, in seconds of time.perf_counter on the first stage of all.
        end: when it ended, on the same clock; its device was done then.
        timeline: spans of all stages of this replica, if traced.
    """

    loss: float
    start: float
    end: float
    timeline: Timeline | None = None

    @property
    def seconds(self) -> float:
        """From the first start to the last end of any stage if traced, otherwise of this stage."""
        if self.timeline is None:
            return self.end - self.start
        return self.timeline.step_time


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation returns on every rank.

    Attributes:
        loss: mean over the mini-batches of all replicas.
        outputs: of the last stage, on that stage; None on the others.
    """

    loss: float
    outputs: Tree | None
