"""What passes between the coordinator and its workers: a job, and what became of it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.schema import RoundRecord
from repro.harness.spec import RunSpec

if TYPE_CHECKING:
    from repro.simulate import StageCosts  # which imports torch: too slow for `repro plan`


@dataclass(frozen=True)
class Job:
    """One run to measure once.

    Attributes:
        spec: the run.
        balance: layers per stage as cut in an earlier round; None: cut now, as the spec says.
        memory: whether to read peak memory too.
        device: "cpu" or "cuda".
        allow_nonfinite: record a run whose loss or gradients are inf or nan, instead of failing it.
        costs: what the stages of an emulated run with a device's profile are to wait.
        cache: of this process, for what several of its jobs begin with.
    """

    spec: RunSpec
    balance: tuple[int, ...] | None = None
    memory: bool = True
    device: str = "cpu"
    allow_nonfinite: bool = False
    costs: "StageCosts | None" = None
    cache: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Measured:
    """What a task brings home: the record of the round, and the spans of its median step."""

    record: RoundRecord
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        status: "done", "oom", "timeout", "failed" or "interrupted".
        reason: why it is not done.
        log: folder of the workers' output, for a person to look into.
        measured: what rank 0 measured; None where it is not done.
    """

    status: str
    reason: str = ""
    log: str = ""
    measured: Measured | None = None


class Measurer(Protocol):
    """What a `Crew` does; tests measure without processes."""

    def ready(self) -> None:
        """Start what is not running yet."""
        ...

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Measure one run once, within `deadline` seconds."""
        ...
