"""The report's tables, pure functions of recorded results and the paper's numbers; here those of any experiment."""

from typing import TYPE_CHECKING, Any

from repro.harness.results import SETTINGS, Results, Run
from repro.paper import theory
from repro.report.compare import (
    Setting,
    fidelities,
    link_name,
    matching,
    rows_of,
    settled,
    suffix,
    without_smoke,
)
from repro.report.declared import report_of
from repro.report.ratio import MARKS, ideal, ideal_over_k1, over_k1
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent, table_of_frames
from repro.report.texts import IDEAL, IDLE

if TYPE_CHECKING:
    from pandas import DataFrame


_PLACE = ["machine", "scale", "experiment", "run"]  # what names a run among all results
_USUAL = "Where a setting names no schedule, replicas or balance: gpipe, one replica, cut by time."


def all_tables(results: Results) -> list[Table]:
    """Every table that these results allow: of the experiments that they hold, and of no other."""
    rows = rows_of(results)
    names = dict.fromkeys(row.experiment for row in rows)
    compared = without_smoke(results)
    tables = [
        table for name in names if (report := report_of(name)) for table in report.tables(compared)
    ]
    rows = [row for row in rows if row.spec.task == "train"]
    tables += [
        points(results, name, f)
        for name in names
        for f in fidelities(matching(rows, experiment=name))
    ]
    with_memory = fidelities(row for row in rows if row.peak_gib_per_stage)
    tables += [*(memory(results, fidelity) for fidelity in with_memory), runs(results)]
    tables = [table for table in tables if not table.missing]
    assert len({table.name for table in tables}) == len(tables)  # each is three files of that name
    return tables


def points(results: Results, experiment: str, fidelity: str = "measured") -> Table:
    """Any experiment, one line a point: time, speedup over K=1 with interval, bubble beside theory, memory."""
    from pandas import DataFrame

    rows = rows_of(results, experiment=experiment, fidelity=fidelity)
    rows = [row for row in rows if row.library == "repro" and row.spec.task == "train"]
    rows = [row for row in rows if row.N]  # where nothing fits, nothing was timed
    note = (
        f"Speedup over K=1: same M, N and re-materialization. {IDLE} Its theory is (K-1)/(M+K-1); "
        f"others print idle/work, theory (K-1)/M. {IDEAL} Peak memory: of the fullest stage. "
        f"{_USUAL} {MARKS}"
    )
    pairs = settled(results, rows)
    shown = DataFrame([_point(results, row, setting) for setting, row in pairs])
    data = DataFrame([{**results.row(row), "setting": setting.details} for setting, row in pairs])
    title = f"{experiment}, {fidelity}: one line a point"
    return table_of_frames(
        f"{experiment}_points{suffix(fidelity)}", title, note, shown, data, experiment
    )


def _point(results: Results, row: Run, setting: Setting) -> dict[str, Any]:
    K, M = row.K, row.M
    plan = row.schedule, row.remat
    perfect = ideal(K, M, *plan)
    done = row.status == "done"
    return {
        "model": model_name(row.model),
        "K": K,
        "M": M,
        "fidelity": row.fidelity,
        "status": row.status,
        "rounds": len(row.rounds),
        "step (ms)": number(1e3 * row.step_s, 1),
        "throughput": f"{row.throughput:.1f} {row.unit}" if done else EMPTY,
        "speedup over K=1": str(over_k1(results, row)),
        "ideal speedup": number(ideal_over_k1(K, M, *plan)),
        "idle/total": percent(row.bubble_idle_over_total),
        "theory, idle/total": percent(theory.bubble_over_total(K, M)),
        "ideal, idle/total": percent(perfect and perfect.bubble_over_total),
        "idle/work": percent(row.bubble_idle_over_work),
        "theory, idle/work": percent(theory.bubble_over_work(K, M)),
        "peak MiB": number(1024 * row.peak_gib_max, 1),
        "setting": setting.details,
    }


def memory(results: Results, fidelity: str = "measured") -> Table:
    """Peak memory of every stage of every finished run of one fidelity, in GiB."""
    from pandas import DataFrame

    rows = [
        row for row in rows_of(results, status="done", fidelity=fidelity) if row.peak_gib_per_stage
    ]
    rows = [row for row in rows if row.spec.task == "train"]
    stages = range(max((len(row.peak_gib_per_stage) for row in rows), default=0))
    lines = []
    for setting, row in settled(results, rows):
        peaks = dict(enumerate(row.peak_gib_per_stage))
        cells = {key: str(getattr(row, key)) for key in ("K", "M", "fidelity", "device")}
        cells |= {f"stage {j}": number(1024 * peaks[j], 1) if j in peaks else "" for j in stages}
        model = model_name(setting.model)
        lines.append(
            {"experiment": row.experiment, "model": model, **cells, "setting": setting.details}
        )
    read = "read in a step of its own: the allocator's on a GPU, live tensor bytes on a CPU"
    note = f"Peak MiB of each stage, {'counted' if fidelity == 'simulated' else read}. {_USUAL}"
    return table_of_frames(
        f"memory{suffix(fidelity)}",
        f"Peak memory of each stage, {fidelity}",
        note,
        DataFrame(lines),
    )


def runs(results: Results) -> Table:
    """Every recorded run, with the same columns in the same order for all experiments."""
    from pandas import DataFrame

    rows = [{**results.row(row), "labels": _labels(results, row)} for row in rows_of(results)]
    # Settings that hardly ever differ are in runs.csv alone, and in differs_in where they do.
    shown = DataFrame(
        [{key: _short(value) for key, value in row.items() if key not in SETTINGS} for row in rows]
    )
    note = (
        "One line a run; differs_in is what tells it from others of its experiment. step_s is in "
        "seconds, memory in GiB. _ci_low and _ci_high are the ends of the bootstrap 95 % interval "
        "of the column before them. balance is the number of layers of each stage. Labels name a "
        "link that was throttled. rounds.csv has each round of each run."
    )
    return table_of_frames("runs", "All runs", note, shown, DataFrame(rows))


def rounds(results: Results) -> "DataFrame":
    """One line for each run and round, as plain numbers: rounds.csv.

    The settings of a run are in runs.csv, on the line with the same machine, scale, experiment and
    run.
    """
    lines = results.rounds
    runs = results.rows[[*_PLACE, "model", "K", "M", "N", "fidelity"]]
    return lines.merge(runs, on=_PLACE, how="left")


def _labels(results: Results, row: Run) -> dict[str, Any]:
    """A run's labels and the speed of its link, by which alone some runs of Table 3 differ."""
    spec = row.spec
    labels = row.labels or {}
    return labels | {"link": link_name(spec)} if spec.link and spec.profile is None else labels


def _short(value: Any) -> str:
    """A cell of the rows table: four digits of a number, parts separated by blanks."""
    if isinstance(value, float):
        return EMPTY if value != value else f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return " ".join(_short(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return EMPTY if value is None else str(value)
