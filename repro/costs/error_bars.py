"""How far predicted steps were off: the range of a step that is predicted anew.

The factors are those of the recorded results of the experiment `costs`, with which
`tests/report/test_costs.py` compares them.
"""

from dataclasses import dataclass

# Where the durations of layers come from.
DATA_SHEET, CALIBRATED = "data sheet", "calibration"
# Nine of ten published ratios of two steps were predicted within 1 / RATIO and RATIO times theirs.
RATIO = 1.1798


@dataclass(frozen=True)
class ErrorBar:
    """Nine of ten steps whose true length is known were predicted within 1 / factor and factor."""

    factor: float
    source: str  # the steps that were predicted, for the user
    ratio: float | None = None  # the same factor for the ratio of two steps, where it is known

    def ends(self, value: float) -> tuple[float, float]:
        return value / self.factor, value * self.factor

    def __str__(self) -> str:
        """For a user, of one step."""
        ratios = f"; of a ratio of two steps {100 * (self.ratio - 1):.0f} %" if self.ratio else ""
        return (
            f"of 90 %: from 1/{self.factor:.2f} to {self.factor:.2f} times the step, by "
            f"{self.source}{ratios}"
        )


def step_error(durations: str) -> ErrorBar:
    """Of a step by durations of this origin."""
    if durations == DATA_SHEET:
        return ErrorBar(1.6085, "19 steps that torchgpipe published", RATIO)
    return ErrorBar(1.1393, "20 steps that were measured with their layers")
