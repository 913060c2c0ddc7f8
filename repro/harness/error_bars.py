"""How far predicted steps were off, from the reference tables, for what is predicted anew."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, isnan, log1p, nan
from pathlib import Path

_TABLES = Path(__file__).resolve().parents[2] / "plots/reference"
SMALL, FEW = 4, 2  # examples of a small micro-batch, and a small K
FEWEST = 5  # known steps that make a range of their own
ANY = "any"  # setting
UNKNOWN = "not known: no step by such a profile has been held against a measured one"
# Where durations come from: in `costs` data sheets, or a device that is fitted to the model's own
# layers in the round of the step; or a calibration, that is these layers themselves.
DATA_SHEET, LAYERS, CALIBRATED = "data sheet", "layers timed here", "calibration"


def off(error: float) -> float:
    """The size of predicted over real minus 1: half as fast and twice as fast are equally wrong."""
    return abs(log1p(error))


def nine_of_ten(sizes: Sequence[float]) -> float:
    """The smallest that nine of ten, or more, do not exceed; NaN of none."""
    return sorted(sizes)[ceil(0.9 * len(sizes)) - 1] if len(sizes) else nan


def setting(examples: float, K: int) -> str:
    """The setting of a step, by the size of its micro-batch and its K."""
    n = f"at most {SMALL}" if examples <= SMALL else f"above {SMALL}"
    return f"micro-batch {n}, K at most {FEW}" if K <= FEW else f"micro-batch {n}, K above {FEW}"


@dataclass(frozen=True)
class ErrorBar:
    """Nine of ten steps whose true length is known were predicted within 1 / factor and factor."""

    factor: float
    source: str = ""  # the steps that were predicted, for the user
    ratio: float | None = None  # the same factor for the ratio of two steps, where it is known

    def ends(self, value: float) -> tuple[float, float]:
        return value / self.factor, value * self.factor

    def __str__(self) -> str:
        """For a user, of one step."""
        ratios = f"; of ratios of two, within {self.ratio - 1:.0%}" if self.ratio else ""
        return (
            f"the step divided and multiplied by {self.factor:.2f}: nine of ten of {self.source} "
            f"were predicted so well{ratios}"
        )


def step_error(examples: float, K: int, durations: str) -> ErrorBar | None:
    """Of a step in this setting with durations of this origin; None where none is known."""
    if durations == CALIBRATED:
        errors = [float(row["error over measured (%) mixed"] or nan) for row in _rows("simulator")]
        sizes = [off(error / 100) for error in errors if not isnan(error)]
        known = "the steps of `simulator`, timed with their layers on an idle machine,"
        return ErrorBar(exp(nine_of_ten(sizes)), known) if sizes else None
    rows = {row["setting"]: row for row in _rows("costs_bars") if row["durations"] == durations}
    if ANY not in rows:
        return None
    row = rows.get(setting(examples, K), rows[ANY])
    row = row if int(row["step known"]) >= FEWEST else rows[ANY]
    named = "" if row is rows[ANY] else f" with {row['setting']}"
    # Ratios of two steps may be of two settings.
    step, ratio = 1 + float(row["step 90 %"]) / 100, 1 + float(rows[ANY]["ratio 90 %"]) / 100
    return ErrorBar(step, f"the steps of `costs` by data sheets{named}", ratio)


def _rows(table: str) -> list[dict[str, str]]:
    """The lines of a reference table, which a wheel has as well."""
    text = (_TABLES / f"{table}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))
