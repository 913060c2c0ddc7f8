"""The tables of any experiment, and every table that recorded results allow."""

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from repro.harness.about import NO_INTERVAL
from repro.harness.frame import (
    COLUMNS,
    CSV_COLUMNS,
    SETTINGS,
    Frame,
    all_runs,
    controls_frame,
    rounds_frame,
    runs_frame,
)
from repro.harness.results import Results, Run
from repro.harness.spec import PLAIN
from repro.report import verdicts
from repro.report.compare import fidelities, link_name, suffix, without_tiny
from repro.report.declared import OVER_PLAIN, report_of
from repro.report.framed import MARKS, RATIO, Form, in_two, with_interval, with_ratio
from repro.report.style import model_name
from repro.report.table import EMPTY, Cell, Table
from repro.report.texts import TABLES

OVER_ITSELF = "step over the same run's"


def all_tables(results: Results) -> list[Table]:
    compared = without_tiny(results)
    tables: list[Table] = []
    for name in dict.fromkeys(run.experiment for run in results.runs):
        if report := report_of(name):
            tables += report.tables(compared)
        else:
            timed = [run for run in results.by_experiment[name] if run.spec.task == "train"]
            tables += [points(results, name, fidelity) for fidelity in fidelities(timed)]
        tables.append(controls(results, name))
    tables += [intervals(compared), runs(results)]
    tables += verdicts.tables(verdicts.judged_claims(results))
    tables = [with_origin(results, table) for table in tables if not table.missing]
    assert len({table.name for table in tables}) == len(tables)  # each is three files of that name
    return tables


def with_origin(results: Results, table: Table) -> Table:
    """The table, with its origin where its rows are not of one commit and machine.

    It also says how many runs were measured in turn, not step against step. A table whose lines
    name no runs has the commits of its experiment, unless it is of a file.
    """
    if table.of_file:
        return table
    every = origins(table.runs or results.by_experiment.get(table.experiment, []))
    recorded = f"Recorded with {'; '.join(every)}." if len(every) > 1 else ""
    in_turn = sum(run.in_turn for run in table.runs)
    alone = f"{in_turn} of {len(table.runs)} runs were measured in turn." if in_turn else ""
    return replace(table, origin=" ".join(filter(None, (table.origin, recorded, alone))))


def origins(runs: Sequence[Run]) -> list[str]:
    """`commit 643b6124aa on amd-epyc-2c (measured, emulated)` of each commit and machine."""
    recorded: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for round_ in run.rounds:
            recorded.setdefault((round_.commit, run.machine), []).append(run)
    return [
        f"commit {commit} on {machine} ({', '.join(fidelities(recorded[commit, machine]))})"
        for commit, machine in sorted(recorded)
    ]


def points(results: Results, experiment: str, fidelity: str = "measured") -> Table:
    """One line a run of an experiment: step, speedups, idle time, memory."""
    frame = runs_frame(results, experiment, fidelity=fidelity, task="train")
    # Where nothing fits, N is 0 and nothing was timed; nor where processes shared devices.
    frame = frame[(frame["N"] > 0) & frame["shared"].isna()]
    frame = with_ratio(results, frame, "speedup over K=1", K=1)
    frame = with_ratio(results, frame, OVER_PLAIN, **PLAIN)
    frame["throughput"] = [
        Cell(run.throughput, f"{run.throughput:.1f} {run.unit}") if run.done else None
        for run in frame["run"]
    ]
    columns = {
        "run": frame["id"],
        "model": frame["model"].map(model_name),
        **{
            name: frame[name]
            for name in ("method", "K", "D", "M", "N", "fidelity", "status", "rounds")
        },
        "recompute": frame["remat"],
        "step (ms)": 1e3 * frame["step_s"],
        "throughput": frame["throughput"],
        **frame.filter(like=OVER_PLAIN),
        **frame.filter(like="speedup over K=1"),
        "idle/total": frame["idle_over_total"],
        "peak MiB": 1024 * frame["peak_gib_max"],
        "differs in": frame["differs_in"],
        "machine": frame["machine"],
    }
    forms: dict[str, Form] = dict.fromkeys((OVER_PLAIN, "speedup over K=1"), RATIO)
    frames = in_two(pd.DataFrame(columns), forms=forms)
    title = f"{experiment}, {fidelity}: one line a point"
    note = f"Plain training has K=1 and M=1, and recomputes nothing. {MARKS}"
    name = f"{experiment}_points{suffix(fidelity)}"
    return Table(name, title, note, *frames, experiment, list(frame["run"]))


def controls(results: Results, experiment: str) -> Table:
    """What an experiment's groups can tell apart: a line for each control of theirs."""
    frame = controls_frame(results, experiment)
    title, note = TABLES["controls"]
    title, note = title.format(experiment=experiment), note.format(no_interval=NO_INTERVAL)
    columns = ["group", "model", "K", "M", "fidelity", "control", "blocks"]
    found = frame[["step", "low", "high"]].to_numpy().tolist()
    shown = with_interval(frame[columns], OVER_ITSELF, found)
    clear = (frame["low"] > 1) | (frame["high"] < 1)
    shown["told apart"] = clear.where(frame["low"].notna(), "no interval")
    frames, name = in_two(shown, forms={OVER_ITSELF: ".3f"}), f"{experiment}_controls"
    return Table(name, title, note, *frames, experiment, list(frame["run"]))


def intervals(results: Results) -> Table:
    """How wide intervals are of measured ratios, each over the first run of its group and M."""
    found: dict[str, list[tuple[float, str]]] = {"all": []}
    first: dict[Hashable, Run] = {}
    for run in results.runs:
        if run.fidelity != "measured" or run.in_turn or run.spec.control or not run.done:
            continue
        of_group = first.setdefault((run.place, run.group), run)
        base = first.setdefault((run.place, run.group, run.M), run)
        base = of_group if base is run else base
        value, low, high, blocks = results.ratio(run, base)
        if run is not base and not math.isnan(low):
            half = (high - low) / 2 / value, f"{run.id} over {base.id}, {blocks} blocks"
            found["all"].append(half)
            found.setdefault(run.experiment, []).append(half)
    lines = [
        (name, len(halves), statistics.median(half for half, _ in halves), *max(halves))
        for name, halves in found.items()
        if halves
    ]
    frame = pd.DataFrame(lines, columns=["experiment", "ratios", "median", "widest", "which is"])
    frames = in_two(frame, forms={"median": ".1%", "widest": ".1%"})
    return Table("intervals", *TABLES["intervals"], *frames)


def runs(results: Results) -> Table:
    frame = all_runs(results)
    frame["labels"] = pd.Series([_labels(run) for run in results.runs], dtype=object)
    # Settings that hardly ever differ are in runs.csv alone, and in differs_in where they do.
    frames = in_two(frame, forms=dict.fromkeys(COLUMNS, _short), hidden=SETTINGS)
    return Table("runs", *TABLES["runs"], *frames)


def rounds(results: Results) -> Frame:
    """One line for each run and round, as plain numbers: rounds.csv.

    The settings of a run are in runs.csv, on the line with the same machine, scale, experiment and
    run.
    """
    return rounds_frame(results)[[*CSV_COLUMNS]].dropna(subset="round")


def _labels(run: Run) -> dict[str, Any]:
    """A run's labels and the speed of its link, by which alone some runs of Table 3 differ."""
    if run.spec.link and run.spec.profile is None:
        return run.labels | {"link": link_name(run.spec)}
    return run.labels


def _short(value: Any) -> str:
    if value is None:
        return EMPTY
    if isinstance(value, float):
        return EMPTY if value != value else f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return " ".join(_short(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return str(value)
