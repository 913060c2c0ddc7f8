"""What happened during training, as plain data."""

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One update."""

    step: int  # from 1
    loss: float  # mean over the mini-batch
    lr: float
    seconds: float  # of the step on the first stage, its data included
    count: int  # examples of the mini-batch


class Evaluation(NamedTuple):
    """The means over the evaluation data after a step."""

    step: int
    values: dict[str, float]


@dataclass
class History:
    """All updates and evaluations, also those before a restart."""

    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def throughput(self, steps: int = 20) -> float:
        """Examples a second in the last steps; 0 before the first one."""
        last = self.steps[-steps:]
        seconds = sum(step.seconds for step in last)
        return sum(step.count for step in last) / seconds if seconds else 0.0

    def as_json(self) -> bytes:
        """As JSON: columns, which are a third of the size of a list of objects."""
        columns = [*zip(*self.steps, strict=True)]
        return json.dumps({"steps": columns, "evaluations": self.evaluations}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "History":
        """The history that `as_json` wrote."""
        content: dict[str, Any] = json.loads(data)
        return cls(
            [Step(*row) for row in zip(*content["steps"], strict=True)],
            [Evaluation(*each) for each in content["evaluations"]],
        )
