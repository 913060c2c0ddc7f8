"""`python -m repro.experiments.costs.record` writes repro/costs/error_bars.json."""

import json
from math import exp
from pathlib import Path
from typing import Any

import pandas as pd

from repro.costs.error_bars import CALIBRATED, DATA_SHEET, FILE
from repro.experiments.costs.report import steps
from repro.experiments.published_errors import nine_of_ten, sizes
from repro.harness.frame import select
from repro.harness.results import Results, load
from repro.report.compare import of_exhibits

REFERENCE = Path(__file__).resolve().parents[2] / "results/reference"


def factors(results: Results) -> dict[str, dict[str, Any]]:
    """Kind of prediction -> the steps that are known, and a factor within which nine of ten are."""
    frame = steps(of_exhibits(results))
    published, timed = (select(frame, durations=kind) for kind in (DATA_SHEET, CALIBRATED))
    return {
        "ratio": _factor(
            published["ratio"], "ratios of two steps that torchgpipe or Lingvo published"
        ),
        DATA_SHEET: _factor(published["step"], "steps that torchgpipe published"),
        CALIBRATED: _factor(timed["step"], "steps that were measured with their layers"),
    }


def _factor(errors: pd.Series, source: str) -> dict[str, Any]:
    known = sizes(errors)
    return {"steps": len(known), "source": source, "factor": round(exp(nine_of_ten(known)), 4)}


if __name__ == "__main__":
    FILE.write_text(json.dumps(factors(load(REFERENCE)), indent=1) + "\n", encoding="utf-8")
