"""What a step and an evaluation return."""

from dataclasses import dataclass

from repro.gpipe.core.microbatch import Tree
from repro.gpipe.schedule.timeline import Timeline


@dataclass(frozen=True)
class StepResult:
    """What a training step returns on every rank.

    Attributes:
        loss: mean over the mini-batch, that of all replicas together.
        start: when this stage began, in seconds on the clock of the first stage of all
            (time.perf_counter there).
        end: when it had ended, its device included.
        timeline: spans of all stages of this replica, if traced.
    """

    loss: float
    start: float
    end: float
    timeline: Timeline | None = None

    @property
    def seconds(self) -> float:
        """From the first stage's start to the last stage's end, if traced; otherwise this stage's own."""
        return self.end - self.start if self.timeline is None else self.timeline.step_time


@dataclass(frozen=True)
class EvaluationResult:
    """What an evaluation returns: the mean loss on every rank, the outputs on the last stage, None elsewhere."""

    loss: float
    outputs: Tree | None
