"""The tables of an experiment, and every run."""

from typing import Any

import pandas as pd

from repro.harness.frame import Frame, all_runs
from repro.harness.results import Results, Run
from repro.harness.text import ranged
from repro.report.compare import link_name, told_apart
from repro.report.curves import OVER_PLAIN, timed_runs
from repro.report.declared import compared
from repro.report.framed import MARKS, in_two, or_status
from repro.report.table import Cell, Table


def tables_of(results: Results, experiment: str) -> list[Table]:
    """Those of its report, or one line a run."""
    shown, report = compared(results, experiment)
    tables = report.tables(shown) if report else [points(results, experiment)]
    return [table for table in tables if not table.missing]


def points(results: Results, experiment: str, over: str = OVER_PLAIN) -> Table:
    """One line a run: throughput, that over plain training or one device, and memory.

    Settings beside the method, K and M stand in one column, as far as they tell runs apart. The csv
    file has them all, and the idle share, which the figure shows.
    """
    frame = timed_runs(results, experiment, over)
    frame["throughput"] = [
        Cell(run.throughput, ranged(run.throughput, unit=run.unit)) for run in frame["run"]
    ]
    columns = {
        **{name: frame[name] for name in ("method", "K", "M")},
        "differs in": told_apart(frame, ("model", "D", "N", "recompute", "fidelity", "where")),
        "throughput": or_status(frame, "throughput"),
        **frame.filter(like=over),
        "peak MiB": 1024 * frame["peak_gib_max"],
    }
    shown, data = in_two(pd.DataFrame(columns))
    settings = frame[
        ["id", "model", "D", "N", "recompute", "fidelity", "machine", "idle_over_total"]
    ]
    settings = settings.rename(columns={"idle_over_total": "idle/total"})
    data = pd.concat([settings.reset_index(drop=True), data], axis=1)
    constant = [name for name in shown if name != "throughput" and shown[name].nunique() < 2]
    title = f"All runs of {experiment}"
    bases = {OVER_PLAIN: "Plain training has K=1 and M=1, and recomputes nothing."}
    note = bases.get(over, "One device has the same M.")
    shown = shown.drop(columns=constant)
    return Table(f"{experiment}_points", title, f"{note} {MARKS}", shown, data)


def runs(results: Results) -> Frame:
    """One line for each run, as plain numbers: runs.csv."""
    frame = all_runs(results)
    frame["labels"] = pd.Series([_labels(run) for run in results.runs], dtype=object)
    return frame


def _labels(run: Run) -> dict[str, Any]:
    """A run's labels and the speed of its link, by which alone some runs of Table 3 differ."""
    if run.spec.link and run.spec.profile is None:
        return run.labels | {"link": link_name(run.spec)}
    return run.labels
