"""What passes between the coordinator and its workers: a job, what became of it, and who measures."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from repro.harness.spec import RunSpec


@dataclass(frozen=True)
class Job:
    """One run to measure once.

    Attributes:
        spec: the run.
        balance: layers per stage as cut in an earlier round; None: cut now, as the spec says.
        memory: whether to read peak memory too.
        device: "cpu" or "cuda".
        allow_nonfinite: record a run whose loss or gradients are inf or nan, instead of failing it.
        costs: of an emulated run with a device's profile what its stages are to wait, as
            `StageCosts.plain` gives it.
    """

    spec: RunSpec
    balance: tuple[int, ...] | None = None
    memory: bool = True
    device: str = "cpu"
    allow_nonfinite: bool = False
    costs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a job: a status word, the reason when it is not done, and what rank 0 measured.

    `log` is the folder of the workers' output, for a person to look into.
    """

    status: str
    reason: str = ""
    log: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    timeline: list[dict[str, Any]] = field(default_factory=list)


class Measurer(Protocol):
    """What `Workers` do; tests measure without processes."""

    def ready(self) -> None:
        """Start what is not running yet."""
        ...

    def measure(self, job: Job, deadline: float) -> Outcome:
        """Measure one run once, within `deadline` seconds."""
        ...


Tell = Callable[[str], object]  # takes a line for the user
