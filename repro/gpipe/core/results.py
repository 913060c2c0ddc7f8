"""What a training step and an evaluation return on every rank."""

from dataclasses import dataclass, field

from repro.gpipe.core.engine import Engine
from repro.gpipe.core.loss import Metrics
from repro.gpipe.runtime.health import report_errors_to_all
from repro.gpipe.schedule.actions import Schedule
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


@report_errors_to_all()
def step_result(engine: Engine, schedule: Schedule, *, trace: bool) -> StepResult:
    """The result of the step that the engine has done, on the clock of the first rank of all."""
    recorder, offset = engine.recorder, engine.all_ranks.clock_offset(engine.step)
    spans, timeline = recorder.finish(), None
    if trace:
        spans = [s._replace(start=s.start + offset, end=s.end + offset) for s in spans]
        of_all = tuple(s for of_rank in engine.channel.all_gather(spans) for s in of_rank)
        timeline = Timeline(of_all, schedule.stages, schedule.stages_per_rank)
    start, end = recorder.began + offset, recorder.ended + offset
    return StepResult(engine.loss, start, end, timeline, engine.metrics)
