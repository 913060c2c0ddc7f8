"""The report's tables, pure functions of recorded results and the paper's numbers.

Table 2 (section 3 of arXiv:1811.06965v5) stands beside our numbers in the paper's normalisation, and again as
speedup over one stage.  A column holds one fidelity; a cell without a number says why.
"""

from collections.abc import Callable
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from repro.paper import table2 as paper_table2
from repro.paper import theory
from repro.report import peers, runtime, table1
from repro.report.compare import (
    NO_INTERVAL,
    Ratio,
    Row,
    Setting,
    fidelities,
    ideal,
    ideal_over_k1,
    ideal_over_k2m1,
    matching,
    over_k1,
    over_k2m1,
    rows_of,
    settings,
    suffix,
)
from repro.report.falls import falls
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number, percent

if TYPE_CHECKING:
    from repro.harness.results import Results

Ours = Callable[["Results", Row], Ratio]
Ideal = Callable[[int, int, str, str], float]
TIMED = ("measured", "emulated", "simulated")
_IDEAL = "Ideal (simulated): the same schedule replayed with equal stages, F:R:B = 1:1:2 and free transfers."
_MARKS = f"[low, high]: bootstrap 95 % interval over rounds, {NO_INTERVAL}; ~ where it spans 1: no difference shown."
_USUAL = "Where a setting names no schedule, replicas or balance: gpipe, one replica, cut by time."


def all_tables(results: "Results") -> list[Table]:
    """Every table that these results allow; Table 2 is there even without results."""
    rows = rows_of(results)
    names = dict.fromkeys(row["experiment"] for row in rows)
    tables = [table2(results), table2_speedup(results), table2_long(results)]
    tables = [*table1.tables(results), *tables, *runtime.tables(results), *peers.tables(results)]
    rows = [row for row in rows if results.specs[row["run"]].task == "train"]
    tables += [points(results, name, f) for name in names for f in fidelities(matching(rows, {"experiment": name}))]
    with_memory = fidelities(row for row in rows if row["peak_gib_per_stage"]) or ["measured"]
    return [*tables, *(memory(results, fidelity) for fidelity in with_memory), runs(results)]


def table2(results: "Results") -> Table:
    """Table 2, rows (model, M), for each K: quoted, our fidelities, ideal; all over K=2, M=1."""
    note = (
        "Throughput over that of K=2, M=1 of the same model. Ours: the same N and re-materialization for both. "
        f"The paper's batch changed from cell to cell and is not printed. {_IDEAL} {_MARKS}"
    )
    title = "Table 2 (v5 and NeurIPS): throughput normalised to K=2, M=1"
    return _wide("table2", title, note, results, over_k2m1, ideal_over_k2m1)


def table2_speedup(results: "Results") -> Table:
    """The controlled view of Table 2: speedup over K=1 at the same M and N; the paper has no K=1."""
    note = (
        "Speedup over K=1 at the same M, N and re-materialization; the paper prints no K=1 column, so nothing is "
        f"quoted. {_IDEAL} {_MARKS}"
    )
    title = "Table 2's runs: speedup over K=1 at the same M"
    return _wide("table2_speedup", title, note, results, over_k1, ideal_over_k1)


def _wide(name: str, title: str, note: str, results: "Results", ours: Ours, theirs: Ideal) -> Table:
    """Rows (model, M); for each K the quoted cell where the baseline is the paper's, our fidelities, the ideal."""
    from pandas import DataFrame, MultiIndex

    rows = [row for row in rows_of(results, experiment="table2") if row["K"] > 1]
    present = {row["fidelity"] for row in rows} | {"measured"}
    Ks = sorted({cell.K for cell in paper_table2()} | {row["K"] for row in rows})
    lines = []
    found = _table2_settings(results, rows)
    for setting in found:
        Ms = {cell.M for cell in paper_table2() if cell.model == setting.model} | {row["M"] for row in setting.rows}
        for M in sorted(Ms):
            line: dict[tuple[str, str], Any] = {("", "model"): _short_title(setting, found), ("", "M"): M}
            for K in Ks:
                if ours is over_k2m1:
                    line[f"K={K}", "quoted"] = _printed(_quoted(setting.model, K, M))
                for fidelity in [fidelity for fidelity in TIMED if fidelity in present]:
                    runs = matching(setting.rows, {"K": K, "M": M, "fidelity": fidelity})
                    line[f"K={K}", fidelity] = _cell(results, runs, ours)
                line[f"K={K}", "ideal"] = number(theirs(K, M, *setting.plan))
            lines.append(line)
    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    details = [f"{model_name(setting.model)}: {setting.details}." for setting in found if setting.details]
    if ours is over_k2m1:
        whole = settings(results, rows_of(results, experiment="table2"))
        details += filter(None, (falls(results, setting, _short_title(setting, whole)) for setting in whole))
    return Table(name, title, " ".join([note, *details]), shown, experiment="table2")


def _table2_settings(results: "Results", rows: list[Row]) -> list[Setting]:
    """The settings that were run, and a bare one for each of the paper's models that was not."""
    found = settings(results, rows)
    for model in dict.fromkeys(cell.model for cell in paper_table2()):
        if model not in {setting.model for setting in found}:
            found.append(Setting(model, ("gpipe", "always"), "", []))
    return sorted(found, key=lambda setting: setting.model)


def _short_title(setting: Setting, others: list[Setting]) -> str:
    """The model alone where the note can say the rest, the full title where a model has several settings."""
    twins = [other for other in others if other.model == setting.model]
    return setting.title if len(twins) > 1 else model_name(setting.model)


def _printed(value: float) -> str:
    """A quoted number with the digits that the paper prints."""
    return EMPTY if isnan(value) else f"{value:g}"


def _quoted(model: str, K: int, M: int) -> float:
    return next((c.value for c in paper_table2() if (c.model, c.K, c.M) == (model, K, M)), nan)


def _cell(results: "Results", found: list[Row], ours: Ours) -> str:
    """Our ratio, or why there is none: the status word, that it was not run, or that its baseline was not."""
    if not found:
        return NOT_RUN
    if found[0]["status"] != "done":
        return found[0]["status"]
    text = str(ours(results, found[0]))
    return text if text != EMPTY else "baseline not measured"


def table2_long(results: "Results") -> Table:
    """Every run of Table 2 in one line: quoted, ours both ways with baselines, and both closed forms."""
    from pandas import DataFrame

    lines = [_long(results, *pair) for pair in _settled(results, rows_of(results, experiment="table2"))]
    note = (
        "One line a run; each ratio is of throughput and its baseline stands beside it. Plain and early ideal: the "
        "closed forms K M/(M+K-1) and, recomputing early at F:R:B = 1:1:2, 4KM/(4M+3(K-1)), over the same baseline. "
        f"The paper's cell is over K=2, M=1. {_MARKS}"
    )
    unrun = [{"model": "both", "status": f"{NOT_RUN}: ./run_all.sh table2"}]
    shown, data = DataFrame([line[0] for line in lines] or unrun), DataFrame([line[1] for line in lines] or unrun)
    return Table("table2_long", "Table 2, one line a run", note, shown.fillna(EMPTY), data, "table2")


def _long(results: "Results", setting: Setting, row: Row) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run as shown and as plain numbers; columns of ours carry their fidelity in their name."""
    K, M, fidelity = row["K"], row["M"], row["fidelity"]
    quoted = _quoted(row["model"], K, M)
    keys = ("scale", "model", "K", "M", "N", "D", "schedule", "remat", "status")
    shown = {key: str(row[key]) for key in keys} | {"quoted": _printed(quoted)}
    data = {key: row[key] for key in ("machine", *keys)} | {"quoted": quoted}
    for name, ratio, formula in (
        ("K=2, M=1", over_k2m1(results, row), theory.speedup_over_k2m1),
        ("K=1", over_k1(results, row), theory.speedup_over_k1),
    ):
        column = f"{fidelity} over {name}"
        shown |= {column: str(ratio), f"{column}: baseline": ratio.baseline, f"{column}: verdict": ratio.verdict}
        data |= {column: ratio.value, f"{column}: low": ratio.low, f"{column}: high": ratio.high}
        data |= {f"{column}: rounds": ratio.rounds, f"{column}: baseline": ratio.baseline}
        if name != "K=1":
            shown[f"{fidelity} / quoted"] = number(ratio.value / quoted)
            data[f"{fidelity} / quoted"] = ratio.value / quoted
        ideals = {f"over {name}: {form} ideal": formula(K, M, form) for form in ("plain", "early")}
        shown |= {key: number(value) for key, value in ideals.items()}
        data |= ideals
    return shown | {"setting": setting.details}, data | {"setting": setting.details}


def points(results: "Results", experiment: str, fidelity: str = "measured") -> Table:
    """Any experiment, one line a point: time, speedup over K=1 with interval, bubble beside theory, memory."""
    from pandas import DataFrame

    rows = rows_of(results, experiment=experiment, fidelity=fidelity)
    rows = [row for row in rows if row["library"] == "repro" and results.specs[row["run"]].task == "train"]
    note = (
        "Speedup over K=1: same M, N and re-materialization. Bubble as idle/total, its theory (K-1)/(M+K-1); others "
        f"print idle/work, theory (K-1)/M. {_IDEAL} Peak memory: of the fullest stage. {_USUAL} {_MARKS}"
    )
    pairs = _settled(results, rows)
    shown = DataFrame([_point(results, row, setting) for setting, row in pairs])
    data = DataFrame([{**row, "setting": setting.details} for setting, row in pairs])
    title = f"{experiment}, {fidelity}: one line a point"
    return Table(f"{experiment}_points{suffix(fidelity)}", title, note, shown, data, experiment)


def _settled(results: "Results", rows: list[Row]) -> list[tuple[Setting, Row]]:
    """Each row with the setting that it belongs to."""
    return [(setting, row) for setting in settings(results, rows) for row in setting.rows]


def _point(results: "Results", row: Row, setting: Setting) -> dict[str, Any]:
    K, M = row["K"], row["M"]
    plan = row["schedule"], row["remat"]
    perfect = ideal(K, M, *plan)
    done = row["status"] == "done"
    return {
        "model": model_name(row["model"]),
        **{key: row[key] for key in ("K", "M", "fidelity", "status", "rounds")},
        "step (ms)": number(1e3 * row["step_s"], 1),
        "throughput": f"{row['throughput']:.1f} {row['unit']}" if done else EMPTY,
        "speedup over K=1": str(over_k1(results, row)),
        "ideal speedup": number(ideal_over_k1(K, M, *plan)),
        "bubble idle/total": percent(row["bubble_idle_over_total"]),
        "theory": percent(theory.bubble_over_total(K, M)),
        "ideal": percent(perfect and perfect.bubble_over_total),
        "bubble idle/work": percent(row["bubble_idle_over_work"]),
        "theory, idle/work": percent(theory.bubble_over_work(K, M)),
        "peak MiB": number(1024 * row["peak_gib_max"], 1),
        "setting": setting.details,
    }


def memory(results: "Results", fidelity: str = "measured") -> Table:
    """Peak memory of every stage of every finished run of one fidelity, in GiB."""
    from pandas import DataFrame

    rows = [row for row in rows_of(results, status="done", fidelity=fidelity) if row["peak_gib_per_stage"]]
    rows = [row for row in rows if results.specs[row["run"]].task == "train"]
    stages = range(max((len(row["peak_gib_per_stage"]) for row in rows), default=0))
    lines = []
    for setting, row in _settled(results, rows):
        peaks = dict(enumerate(row["peak_gib_per_stage"]))
        cells = {key: str(row[key]) for key in ("K", "M", "fidelity", "device")}
        cells |= {f"stage {j}": number(1024 * peaks[j], 1) if j in peaks else "" for j in stages}
        model = model_name(setting.model)
        lines.append({"experiment": row["experiment"], "model": model, **cells, "setting": setting.details})
    note = (
        "Peak MiB of each stage, read in a step of its own: the allocator's on a GPU, live tensor bytes on a CPU. "
        f"{_USUAL}"
    )
    shown = DataFrame(lines or [{"experiment": "all", "peak memory": f"{NOT_RUN}: no finished run yet"}])
    return Table(f"memory{suffix(fidelity)}", f"Peak memory of each stage, {fidelity}", note, shown)


def runs(results: "Results") -> Table:
    """Every recorded run, with the same columns in the same order for all experiments."""
    from pandas import DataFrame

    if results.rows.empty:
        shown = DataFrame([{"run": "none", "status": f"{NOT_RUN}: ./run_all.sh --scale smoke"}])
        return Table("runs", "All runs", "There are no results yet.", shown)
    shown = DataFrame([{key: _short(value) for key, value in row.items()} for row in rows_of(results)])
    note = "One line a run. ci_low and ci_high belong to speedup_vs_k1; step_s in seconds, memory in GiB."
    return Table("runs", "All runs", note, shown, results.rows)


def _short(value: Any) -> str:
    """A cell of the rows table: four digits of a number, parts separated by blanks."""
    if isinstance(value, float):
        return EMPTY if value != value else f"{value:.4g}"
    if isinstance(value, (tuple, list)):
        return " ".join(_short(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return EMPTY if value is None else str(value)
