"""How far predicted steps were off, from the reference tables, for what is predicted anew."""

import csv
import statistics
from dataclasses import dataclass
from math import exp, log1p
from pathlib import Path

_TABLES = Path(__file__).resolve().parents[2] / "plots/reference"
_STEP, _RATIO, _CALIBRATED = (
    "error (%) throughput",
    "error (%) ratio",
    "error over measured (%) mixed",
)


@dataclass(frozen=True)
class ErrorBar:
    """The median error of predicted steps whose true length is known.

    Attributes:
        factor: half of the steps were predicted within 1 / factor and factor of the real one.
        source: the steps that were predicted, for the user.
        ratio: the same factor for the ratio of two steps; None if it is not known.
    """

    factor: float
    source: str
    ratio: float | None = None

    def ends(self, seconds: float) -> tuple[float, float]:
        """Lower and upper end of the bar around a predicted step."""
        return seconds / self.factor, seconds * self.factor


def profile_error() -> ErrorBar | None:
    """Of steps by a device's profile: the last rows of the table `costs`; None without it."""
    rows = _rows("costs")
    medians = [row for row in rows if row["source"] == "all" and row["model"] == "median error"]
    if not medians:
        return None
    (row,) = medians
    step, ratio = (1 + float(row[column]) / 100 for column in (_STEP, _RATIO))
    return ErrorBar(step, "the published and measured steps of `costs`", ratio)


def calibration_error() -> ErrorBar | None:
    """Of steps by layers that were timed here: the rows of `simulator`; None without them."""
    errors = [float(row[_CALIBRATED]) for row in _rows("simulator") if row[_CALIBRATED]]
    if not errors:
        return None
    median = statistics.median(abs(log1p(error / 100)) for error in errors)
    return ErrorBar(exp(median), "the measured steps of `simulator`")


def _rows(table: str) -> list[dict[str, str]]:
    """The lines of a reference table; none where the project is installed without its plots."""
    path = _TABLES / f"{table}.csv"
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
