"""`python -m experiments.costs.record` writes repro/costs/error_bars.json from the reference."""

import json
from pathlib import Path

from experiments.costs.error import factors
from repro.costs.error_bars import FILE
from repro.harness.results import load

REFERENCE = Path(__file__).resolve().parents[2] / "results/reference"

if __name__ == "__main__":
    FILE.write_text(json.dumps(factors(load(REFERENCE)), indent=1) + "\n", encoding="utf-8")
