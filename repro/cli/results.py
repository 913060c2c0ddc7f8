"""`repro results`: all recorded runs as one table."""

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import tyro

from repro.cli.options import parse
from repro.gpipe.errors import one_of
from repro.harness.results import load_recorded
from repro.report.table import guarded

# The columns of most use on a terminal; --csv has all of them.
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
    "speedup_vs_k1",
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
    """all columns, as comma-separated values"""


def main(arguments: list[str]) -> int:
    options = parse(ResultsOptions, arguments, "repro results")
    rows = load_recorded(options.results).rows
    if options.experiment:
        one_of("experiment", options.experiment, sorted(set(rows["experiment"])))
        rows = rows[rows["experiment"] == options.experiment]
    if options.csv:
        rows.map(guarded).to_csv(sys.stdout, index=False)
    else:
        shown: pd.DataFrame = rows.loc[:, _SHOWN]
        print(shown.to_string(index=False, na_rep="", float_format="%.4g"))
    return 0
