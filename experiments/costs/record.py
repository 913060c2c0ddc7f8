"""`python -m experiments.costs.record` writes repro/costs/error_bars.json from the reference."""

import json
from math import exp
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.costs.report import nine_of_ten, sizes, steps
from repro.costs.error_bars import CALIBRATED, DATA_SHEET, FILE
from repro.harness.frame import select
from repro.harness.results import Results, load
from repro.harness.spec import TINY

REFERENCE = Path(__file__).resolve().parents[2] / "results/reference"


def factors(results: Results) -> dict[str, dict[str, Any]]:
    """Kind of what is predicted -> how many are known, and a factor within which nine of ten are.

    Steps of tiny models are too short to say anything.
    """
    frame = steps(results)
    frame = frame[[run.scale not in TINY for run in frame["run"]]]
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
