"""The tables of an experiment, and every run and round."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pandas as pd

from repro.harness.frame import CSV_COLUMNS, Frame, all_runs
from repro.harness.results import Results, Run
from repro.harness.text import ranged
from repro.report.compare import link_name, told_apart
from repro.report.curves import OVER_PLAIN, timed_runs
from repro.report.declared import compared
from repro.report.framed import MARKS, in_two, or_status
from repro.report.table import Cell, Table

# Attributes of a run and of a round that are columns of rounds.csv.
_OF_RUN = ("machine", "scale", "experiment", "group", "id", "model", "K", "M", "N", "fidelity")
_OF_ROUND = ("name", "commit", "step_s", "throughput", "idle_over_total", "idle_over_work")
_OF_ROUND += ("loss", "breakdown", "load")


def tables_of(results: Results, experiment: str) -> list[Table]:
    """Those of its report, or one line a run."""
    shown, report = compared(results, experiment)
    tables = report.tables(shown) if report else [points(results, experiment)]
    return [table for table in tables if not table.missing]


def origins(runs: Sequence[Run]) -> list[str]:
    """`commit 643b6124aa on amd-epyc-2c (measured, emulated)` of each commit and machine."""
    recorded: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        for round_ in run.rounds:
            recorded.setdefault((round_.commit, run.machine), set()).add(run.fidelity)
    return [
        f"commit {commit} on {machine} ({', '.join(sorted(found))})"
        for (commit, machine), found in sorted(recorded.items())
    ]


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
        "differs in": told_apart(frame, ("model", "D", "N", "checkpoint", "fidelity", "where")),
        "throughput": or_status(frame, "throughput"),
        **frame.filter(like=over),
        "peak MiB": 1024 * frame["peak_gib_max"],
    }
    shown, data = in_two(pd.DataFrame(columns))
    settings = frame[
        ["id", "model", "D", "N", "checkpoint", "fidelity", "machine", "idle_over_total"]
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


def rounds(results: Results) -> Frame:
    """One line for each run and round, as plain numbers: rounds.csv.

    The settings of a run are in runs.csv, on the line with the same machine, scale, experiment and
    run.
    """
    of_run, of_round = attrgetter(*_OF_RUN), attrgetter(*_OF_ROUND)
    lines = [
        (*of_run(run), *of_round(round_), round_.values["setup_s"])
        for run in results.runs
        for round_ in run.rounds
    ]
    names = {"id": "run", "name": "round"}
    columns = [*_OF_RUN, *_OF_ROUND, "setup_s"]
    return pd.DataFrame(lines, columns=columns).rename(columns=names)[[*CSV_COLUMNS]]


def _labels(run: Run) -> dict[str, Any]:
    """A run's labels and the speed of its link, by which alone some runs of Table 3 differ."""
    if run.spec.link and run.spec.profile is None:
        return run.labels | {"link": link_name(run.spec)}
    return run.labels
