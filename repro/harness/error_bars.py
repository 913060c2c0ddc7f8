"""How far predicted steps were off, from the reference tables, for what is predicted anew."""

import csv
import statistics
from dataclasses import dataclass
from math import exp, log1p
from pathlib import Path

_TABLES = Path(__file__).resolve().parents[2] / "plots/reference"


@dataclass(frozen=True)
class ErrorBar:
    """Half of the steps whose true length is known were predicted within 1 / factor and factor."""

    factor: float
    source: str  # the steps that were predicted, for the user
    ratio: float | None = None  # the same factor for the ratio of two steps, where it is known

    def ends(self, seconds: float) -> tuple[float, float]:
        return seconds / self.factor, seconds * self.factor


def profile_error() -> ErrorBar | None:
    """Of steps by a device's profile: the line of the table `costs` over all; None without it."""
    for row in _rows("costs"):
        if (row["source"], row["model"]) == ("all", "median error"):
            step, ratio = (float(row[f"error (%) {of}"]) / 100 for of in ("throughput", "ratio"))
            return ErrorBar(1 + step, "the published and measured steps of `costs`", 1 + ratio)
    return None


def calibration_error() -> ErrorBar | None:
    """Of steps by layers that were timed here: the rows of `simulator`; None without them."""
    errors = [row["error over measured (%) mixed"] for row in _rows("simulator")]
    sizes = [abs(log1p(float(error) / 100)) for error in errors if error]
    if not sizes:
        return None
    return ErrorBar(exp(statistics.median(sizes)), "the measured steps of `simulator`")


def _rows(table: str) -> list[dict[str, str]]:
    """The lines of a reference table; none where the project is installed without its plots."""
    path = _TABLES / f"{table}.csv"
    text = path.read_text("utf-8") if path.is_file() else ""
    return list(csv.DictReader(text.splitlines()))
