"""What passes between the coordinator and its workers: a request for a run, and its result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import SerializeAsAny

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.schema import RoundRecord
from repro.harness.spec import TIMED, RunSpec


class Status(NamedTuple):
    """What became of a run."""

    # "planned", "done", "skipped", "oom", "timeout" or "failed"; in older records also "running" or
    # "interrupted", of runs without a result.
    word: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.word}({self.reason})" if self.reason else self.word


@dataclass(frozen=True)
class Request:
    """One run to measure once."""

    spec: SerializeAsAny[RunSpec]  # with the fields of its task
    balance: tuple[int, ...] | None = None  # as cut in an earlier round; None: cut now
    memory: bool = True  # whether to read peak memory too
    device: str = "cpu"  # or "cuda"
    order: int = 0  # seed of the orders in which the runs of a block take their steps
    bases: tuple[int, ...] = ()  # numbers of the runs beside it that it is divided by

    @property
    def apart(self) -> bool:
        """Whether it takes one process of the CPU, and nothing of it is timed.

        Then one worker measures it, while others measure other runs.
        """
        untimed = self.spec.task == "learn" or self.spec.fidelity not in TIMED
        return untimed and self.spec.devices == 1 and self.device == "cpu"


@dataclass(frozen=True)
class Result:
    """The record of a run in one round, and the spans of its median step."""

    record: RoundRecord
    timeline: Timeline | None = None


# Measures one run once, within so many seconds; without a result, its status says why.
Measure = Callable[[Request, float], Result | Status]
