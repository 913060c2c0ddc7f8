"""The tables of any experiment, and every table that recorded results allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pandas import DataFrame

from repro.harness.results import COLUMNS, SETTINGS, Results, Run
from repro.paper import theory
from repro.report import verdicts
from repro.report.compare import (
    Setting,
    fidelities,
    link_name,
    matching,
    rows_of,
    settled,
    suffix,
    without_tiny,
)
from repro.report.declared import report_of
from repro.report.grid import Cell, Column, amount, declared, plain, settings, share
from repro.report.provenance import with_provenance
from repro.report.ratio import MARKS, ideal, ideal_over_k1, over_k1
from repro.report.style import model_name
from repro.report.table import EMPTY, Table

_PLACE = ["machine", "scale", "experiment", "run"]  # what names a run among all results
_USUAL = "Settings leave out what is usual: schedule gpipe, one replica, cut by time."


def all_tables(results: Results, claims: Sequence[verdicts.Judged] | None = None) -> list[Table]:
    """Every table that these results allow, those of their experiments first."""
    every_run = rows_of(results)
    names = dict.fromkeys(run.experiment for run in every_run)
    compared = without_tiny(results)
    tables: list[Table] = []
    timed = [run for run in every_run if run.spec.task == "train"]
    for name in names:
        report = report_of(name)
        if report is not None:
            tables += report.tables(compared)
            continue
        for fidelity in fidelities(matching(timed, experiment=name)):
            tables.append(points(results, name, fidelity))
    with_memory = [run for run in timed if run.peak_gib_per_stage]
    tables += [memory(results, fidelity) for fidelity in fidelities(with_memory)]
    tables.append(runs(results))
    tables += verdicts.tables(verdicts.judged_claims(results) if claims is None else claims)
    tables = [with_provenance(results, table) for table in tables if not table.missing]
    assert len({table.name for table in tables}) == len(tables)  # each is three files of that name
    return tables


def is_of_points(table: Table) -> bool:
    return table.name.startswith(f"{table.experiment}_points")


@dataclass(frozen=True)
class Line:
    run: Run
    setting: Setting
    values: Mapping[str, Any]


def points(results: Results, experiment: str, fidelity: str = "measured") -> Table:
    """One line a run of an experiment: step, speedup over K=1, idle time beside theory, memory."""

    def throughput(run: Run) -> Cell:
        return Cell(text=f"{run.throughput:.1f} {run.unit}" if run.done else EMPTY)

    def ideal_idle(run: Run) -> Cell:
        perfect = ideal(run.K, run.M, run.schedule, run.remat)
        return Cell() if perfect is None else share(perfect.bubble_over_total)

    def ideal_speedup(run: Run) -> Cell:
        return amount(ideal_over_k1(run.K, run.M, run.schedule, run.remat))

    def shown(name: str, cell: Any) -> Column[Line]:
        """A column for readers; the csv file has the columns of runs.csv."""
        return Column(name, lambda line: cell(line.run), csv="")

    columns: list[Column[Line]] = [
        shown("model", lambda run: plain(model_name(run.model))),
        shown("K", lambda run: plain(run.K)),
        shown("M", lambda run: plain(run.M)),
        shown("fidelity", lambda run: plain(run.fidelity)),
        shown("status", lambda run: plain(run.status)),
        shown("rounds", lambda run: plain(len(run.rounds))),
        shown("step (ms)", lambda run: amount(1e3 * run.step_s, 1)),
        shown("throughput", throughput),
        shown("speedup over K=1", lambda run: plain(over_k1(results, run))),
        shown("ideal speedup", ideal_speedup),
        shown("idle/total", lambda run: share(run.bubble_idle_over_total)),
        shown("theory, idle/total", lambda run: share(theory.bubble_over_total(run.K, run.M))),
        shown("ideal, idle/total", ideal_idle),
        shown("idle/work", lambda run: share(run.bubble_idle_over_work)),
        shown("theory, idle/work", lambda run: share(theory.bubble_over_work(run.K, run.M))),
        shown("peak MiB", lambda run: amount(1024 * run.peak_gib_max, 1)),
        Column("setting", lambda line: Cell(text=line.setting.details), csv=""),
        *(_csv_column(name) for name in COLUMNS),
        Column("", lambda line: plain(line.setting.details), csv="setting"),
    ]
    rows = rows_of(results, experiment=experiment, fidelity=fidelity, library="repro")
    # Where nothing fits, N is 0 and nothing was timed; nor where processes shared devices.
    rows = [run for run in rows if run.spec.task == "train" and run.N and not run.spec.shared]
    lines = [Line(run, setting, results.row(run)) for setting, run in settled(results, rows)]
    note = f"Speedup over K=1 is at the same M, N and re-materialization. {MARKS} {_USUAL}"
    title = f"{experiment}, {fidelity}: one line a point"
    name = f"{experiment}_points{suffix(fidelity)}"
    return declared(name, title, note, lines, columns, experiment)


def _csv_column(name: str) -> Column[Line]:
    return Column("", lambda line: Cell(line.values[name], str(line.values[name])), csv=name)


def memory(results: Results, fidelity: str = "measured") -> Table:
    """Peak memory of every stage of every finished run of one fidelity, in MiB."""
    rows = rows_of(results, status="done", fidelity=fidelity)
    rows = [run for run in rows if run.peak_gib_per_stage and run.spec.task == "train"]

    def peak(line: Line, stage: int) -> Cell:
        peaks = line.run.peak_gib_per_stage
        return plain(amount(1024 * peaks[stage], 1).text if stage < len(peaks) else "")

    def stage_column(stage: int) -> Column[Line]:
        return Column(f"stage {stage}", lambda line: peak(line, stage))

    columns: list[Column[Line]] = [
        *settings(lambda line: line.run, "experiment"),
        Column("model", lambda line: plain(model_name(line.run.model))),
        *settings(lambda line: line.run, "K", "M", "fidelity", "device"),
        *(stage_column(j) for j in range(max((run.K for run in rows), default=0))),
        Column("setting", lambda line: plain(line.setting.details)),
    ]
    lines = [Line(run, setting, {}) for setting, run in settled(results, rows)]
    read = "read in a step of its own: the allocator's on a GPU, live tensor bytes on a CPU"
    note = f"Peak MiB of each stage, {'counted' if fidelity == 'simulated' else read}. {_USUAL}"
    title = f"Peak memory of each stage, {fidelity}"
    return declared(f"memory{suffix(fidelity)}", title, note, lines, columns, "")


def runs(results: Results) -> Table:
    """Every recorded run, with the same columns in the same order for all experiments."""

    def column(name: str) -> Column[dict[str, Any]]:
        # Settings that hardly ever differ are in runs.csv alone, and in differs_in where they do.
        shown = "" if name in SETTINGS else name
        return Column(shown, lambda row: Cell(row[name], _short(row[name])), csv=name)

    rows = [results.row(run) | {"labels": _labels(run)} for run in rows_of(results)]
    note = (
        "One line a run: step_s is in seconds, memory in GiB, and differs_in tells a run from "
        "others of its experiment. _ci_low and _ci_high are the ends of the bootstrap 95 % "
        "interval of the column before them."
    )
    return declared("runs", "All runs", note, rows, [column(name) for name in COLUMNS], "")


def rounds(results: Results) -> DataFrame:
    """One line for each run and round, as plain numbers: rounds.csv.

    The settings of a run are in runs.csv, on the line with the same machine, scale, experiment and
    run.
    """
    runs = results.rows[[*_PLACE, "model", "K", "M", "N", "fidelity"]]
    return results.rounds.merge(runs, on=_PLACE, how="left")


def _labels(run: Run) -> dict[str, Any]:
    """A run's labels and the speed of its link, by which alone some runs of Table 3 differ."""
    if run.spec.link and run.spec.profile is None:
        return run.labels | {"link": link_name(run.spec)}
    return run.labels


def _short(value: Any) -> str:
    """A value as text: four digits of a number, the parts of a list separated by blanks."""
    if value is None:
        return EMPTY
    if isinstance(value, float):
        return EMPTY if value != value else f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return " ".join(_short(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return str(value)
