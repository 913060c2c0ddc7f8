"""How far predicted steps were off, from the reference tables, for what is predicted anew."""

import csv
from dataclasses import dataclass
from math import exp, log1p
from pathlib import Path

_TABLES = Path(__file__).resolve().parents[2] / "plots/reference"
SMALL, FEW = 4, 2  # examples of a small micro-batch, and a small K
FEWEST = 5  # known steps that make a range of their own
ANY = "any"  # setting
DATA_SHEET, FITTED = "data sheet", "layers timed here"  # where the durations come from


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


def step_error(examples: float, K: int, *, timed: bool) -> ErrorBar | None:
    """Of a step in this setting by layers that were timed here, else by a data sheet's profile."""
    return _timed_error() if timed else _profile_error(examples, K)


def _profile_error(examples: float, K: int) -> ErrorBar | None:
    """By a data sheet's profile; None without the table `costs_bars`."""
    rows = [row for row in _rows("costs_bars") if row["durations"] == DATA_SHEET]
    known = {row["setting"]: row for row in rows}
    row = known.get(setting(examples, K), {})
    if min(int(row.get(f"{of} known", 0)) for of in ("step", "ratio")) < FEWEST:
        row = known.get(ANY, {})
    if not row:
        return None
    step, ratio = (1 + float(row[f"{of} 90 %"]) / 100 for of in ("step", "ratio"))
    return ErrorBar(step, f"the steps of `costs` by data sheets, {row['setting']}", ratio)


def _timed_error() -> ErrorBar | None:
    """By layers that were timed here: of the rows of `simulator`; None without them."""
    errors = [row["error over measured (%) mixed"] for row in _rows("simulator")]
    sizes = sorted(abs(log1p(float(error) / 100)) for error in errors if error)
    if not sizes:
        return None
    # Of few steps the greatest error.
    return ErrorBar(exp(sizes[int(0.9 * len(sizes))]), "the measured steps of `simulator`")


def _rows(table: str) -> list[dict[str, str]]:
    """The lines of a reference table; none where the project is installed without its plots."""
    path = _TABLES / f"{table}.csv"
    text = path.read_text("utf-8") if path.is_file() else ""
    return list(csv.DictReader(text.splitlines()))
