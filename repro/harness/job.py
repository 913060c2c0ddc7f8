"""What passes between the coordinator and its workers: a job, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import SerializeAsAny

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.schema import RoundRecord, TrainRound
from repro.harness.spec import TIMED, RunSpec


@dataclass(frozen=True)
class Job:
    """One run to measure once."""

    spec: SerializeAsAny[RunSpec]  # with the fields of its task
    balance: tuple[int, ...] | None = None  # as cut in an earlier round; None: cut now
    memory: bool = True  # whether to read peak memory too
    device: str = "cpu"  # or "cuda"
    order: int = 0  # seed of the orders in which the jobs of a block take their steps
    simulated: TrainRound | None = None  # of a run that is emulated with a device's profile
    bases: tuple[int, ...] = ()  # numbers of the jobs beside it that it is divided by

    @property
    def processes(self) -> int:
        """Ranks that take part."""
        return 1 if self.spec.library == "torchgpipe" else self.spec.devices

    @property
    def apart(self) -> bool:
        """Whether one worker measures it while others measure other runs."""
        return takes_one_core(self.spec, self.device)


@dataclass(frozen=True)
class Measured:
    """The record of a round, and the spans of its median step."""

    record: RoundRecord
    timeline: Timeline | None = None


@dataclass(frozen=True)
class Outcome:
    status: str  # "done", "oom", "timeout", "failed" or "interrupted"
    reason: str = ""  # why it is not done
    log: str = ""  # folder of the workers' output, for a person to look into
    measured: Measured | None = None  # by rank 0; None where it is not done


def takes_one_core(spec: RunSpec, device: str) -> bool:
    """Whether it takes one process of the CPU and nothing of it is timed.

    So others of its kind may run beside it. A measured fit may not: its sizes follow each other.
    """
    untimed = spec.task == "learn" or spec.fidelity not in TIMED
    return untimed and spec.devices == 1 and device == "cpu"


Measure = Callable[[Job, float], Outcome]  # of one run once, within so many seconds
