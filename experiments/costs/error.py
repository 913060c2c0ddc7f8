"""How far the cost model is off, for the ranges of what it predicts anew."""

from collections.abc import Iterable
from math import ceil, exp, log1p, nan
from statistics import median
from typing import Any

from experiments.costs.cells import cells
from experiments.costs.runs import GPU, HERE
from experiments.simulator.report import ERRORS, judged
from repro.costs.error_bars import CALIBRATED, DATA_SHEET
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.spec import TINY

PUBLISHED = "steps that torchgpipe published"
RATIOS = "ratios of two steps that torchgpipe or Lingvo published"
TIMED = "steps of the experiment `simulator`, whose layers were timed beside them,"


def off(error: float) -> float:
    """The size of predicted over real minus 1: half as fast and twice as fast are equally wrong."""
    return abs(log1p(error))


def nine_of_ten(sizes: Iterable[float]) -> float:
    """The smallest that nine of ten, or more, do not exceed; NaN of none."""
    ordered = sorted(sizes)
    return ordered[ceil(0.9 * len(ordered)) - 1] if ordered else nan


def factors(results: Results) -> dict[str, dict[str, Any]]:
    """What `repro/costs/error_bars.json` holds: of each kind of steps, how many, and the factor."""
    frame: Frame = cells(results)
    groups = frame["group"].astype(str)
    frame = frame[~groups.str.endswith((HERE, GPU)) & ~frame["scale"].isin(TINY)]
    timed = [
        median(each for of_round in errors for each in of_round) / 100
        for errors in judged(results)[ERRORS["mixed"]]
        if errors
    ]
    return {
        "ratio": _factor(frame["ratio"].dropna(), RATIOS),
        DATA_SHEET: _factor(frame["absolute"].dropna(), PUBLISHED),
        CALIBRATED: _factor(timed, TIMED),
    }


def _factor(errors: Iterable[float], source: str) -> dict[str, Any]:
    sizes = [*map(off, errors)]
    return {"steps": len(sizes), "source": source, "factor": round(exp(nine_of_ten(sizes)), 4)}
