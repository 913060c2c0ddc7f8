"""`repro results`: all recorded runs as one table."""

import dataclasses
import sys
from pathlib import Path

import pandas as pd
import tyro

from repro.cli.options import parse
from repro.harness.frame import rounds_frame
from repro.harness.results import load_recorded
from repro.io.untrusted import short
from repro.report.table import guarded

_RESULT = ("status", "step_s", "throughput", "idle_over_total", "peak_gib_max")
_SHOWN = ("experiment", "run", "N", "schedule", "remat", "fidelity", *_RESULT)


@dataclasses.dataclass(frozen=True)
class ResultsOptions:
    """Print all recorded runs as one table, or as comma-separated values."""

    results: Path = Path("results")
    """where measurements were recorded; results/reference for the committed ones"""
    csv: tyro.conf.FlagCreatePairsOff[bool] = False
    """a row for each run and round with all columns, as comma-separated values"""


def main(arguments: list[str]) -> int:
    options = parse(ResultsOptions, arguments, "repro results")
    results = load_recorded(options.results)
    if options.csv:
        rounds_frame(results).map(guarded).to_csv(sys.stdout, index=False)
        return 0
    lines = [{**{n: getattr(run, n, None) for n in _SHOWN}, "run": run.id} for run in results.runs]
    shown = pd.DataFrame(lines, columns=list(_SHOWN))
    shown["status"] = [short(run.status, 60, quote=False) for run in results.runs]
    print(shown.to_string(index=False, na_rep="", float_format="%.4g"))
    return 0
