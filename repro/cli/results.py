"""`repro results`: all recorded runs as one table."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro

from repro.cli.options import parse
from repro.gpipe.errors import one_of
from repro.harness.frame import rounds_frame
from repro.harness.results import load_recorded
from repro.report.table import guarded

_SHOWN = [
    "experiment",
    "run",
    "N",
    "schedule",
    "remat",
    "fidelity",
    "status",
    "step_s",
    "throughput",
    "bubble_idle_over_total",
    "peak_gib_max",
]


@dataclasses.dataclass(frozen=True)
class ResultsOptions:
    """Print all recorded runs as one table, or as comma-separated values."""

    results: Path = Path("results")
    """where measurements were recorded; results/reference for the committed ones"""
    experiment: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """only the runs of this experiment"""
    csv: tyro.conf.FlagCreatePairsOff[bool] = False
    """a row for each run and round with all columns, as comma-separated values"""


def main(arguments: list[str]) -> int:
    options = parse(ResultsOptions, arguments, "repro results")
    results = load_recorded(options.results)
    if options.experiment:
        experiments = {run.experiment for run in results.runs}
        one_of("experiment", options.experiment, sorted(experiments))
        runs = [run for run in results.runs if run.experiment == options.experiment]
        results = dataclasses.replace(results, runs=runs)
    if options.csv:
        rounds_frame(results).map(guarded).to_csv(sys.stdout, index=False)
        return 0
    lines = [{**{n: getattr(run, n, None) for n in _SHOWN}, "run": run.id} for run in results.runs]
    shown = pd.DataFrame(lines, columns=_SHOWN)
    print(shown.to_string(index=False, na_rep="", float_format="%.4g"))
    return 0
