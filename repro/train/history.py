"""What happened during training, as plain data."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One update.

    Attributes:
        step: its number, from 1.
        loss: mean over the mini-batch.
        lr: the learning rate.
        seconds: of the step on the first stage, its data included.
        count: examples or tokens of the mini-batch.
    """

    step: int
    loss: float
    lr: float
    seconds: float
    count: int


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
        """Examples or tokens a second in the last steps; 0 before the first one."""
        last = self.steps[-steps:]
        seconds = sum(step.seconds for step in last)
        return sum(step.count for step in last) / seconds if seconds else 0.0

    def as_json(self) -> bytes:
        """As JSON: steps column by column, which is a third of the size of a list of objects."""
        columns = {name: [getattr(step, name) for step in self.steps] for name in Step._fields}
        evaluations = [{"step": each.step, "values": each.values} for each in self.evaluations]
        return json.dumps({"steps": columns, "evaluations": evaluations}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "History":
        """The history that `as_json` wrote."""
        content: dict[str, Any] = json.loads(data)
        columns = [content["steps"][name] for name in Step._fields]
        return cls(
            [Step(*row) for row in zip(*columns, strict=True)],
            [Evaluation(each["step"], each["values"]) for each in content["evaluations"]],
        )


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
