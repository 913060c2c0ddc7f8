"""Table 2 (section 3 of arXiv:1811.06965v5) beside our numbers: normalised as the paper's, over one stage, at length.

A column holds one fidelity; a cell without a number says why.
"""

from collections.abc import Callable, Iterator
from math import isnan
from typing import TYPE_CHECKING, Any

from experiments.table2 import emulated, predictions
from experiments.table2 import protocols as by_protocol
from experiments.table2.falls import falls
from experiments.table2.figures import about_bars, about_protocols, bars, protocols
from experiments.table2.recorded import NAME, Protocol, fixed, protocol, quoted, warning
from repro.harness.results import Results, Run
from repro.paper import table2 as paper_table2
from repro.paper import theory
from repro.report import figures as generic
from repro.report.compare import (
    Setting,
    beside_paper,
    matching,
    optimizers,
    rows_of,
    settings,
    settled,
)
from repro.report.ratio import MARKS, Ratio, ideal_over_k1, ideal_over_k2m1, over_k1, over_k2m1
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, memory, number, table_of_frames
from repro.report.texts import IDEAL, PLAIN

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Ours = Callable[[Results, Run], Ratio]
Ideal = Callable[[int, int, str, str], float]
Line = dict[tuple[str, str], Any]
FOLDED = ("table2_long*", "table2_points*", "table2_cells", "table2_figure2*_emulated")
# Of three fidelities those that a generic figure would be too long with.
HIDDEN = {
    "memory": ("emulated", "simulated"),
    "breakdown": ("emulated",),
    "timelines": ("simulated",),
}
_KEPT = "simulated, over K=1 without recompute"


def tables(results: Results) -> list[Table]:
    """Table 2 and what the modelled runs say of it; none if it was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    made = [table2(results), table2_speedup(results)]
    if beside_paper(results, NAME):
        made += [*predictions.tables(results), *by_protocol.tables(results)]
    return [*made, *emulated.tables(results), table2_long(results)]


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """Table 2 as bars and under other protocols; then the generic figures of its controlled runs."""
    if beside_paper(results, NAME):
        for name, make, about in (
            ("bars", bars, about_bars),
            ("protocols", protocols, about_protocols),
        ):
            yield (
                name,
                make(results, rows),
                " ".join(filter(None, (about(results), optimizers(results, rows)))),
            )
    yield from generic.figures(results, fixed(rows), HIDDEN)


def table2(results: Results) -> Table:
    """Table 2, rows (model, M), for each K: quoted, our fidelities, ideal; all over K=2, M=1."""
    quoting = beside_paper(results, NAME)
    theirs = "The paper's batch changed from cell to cell and is not printed. " if quoting else ""
    note = (
        "Throughput over that of K=2, M=1 of the same model and column. Ours: the same N and "
        f"re-materialization for both. {theirs}{IDEAL} {MARKS}"
    )
    title = "Table 2 (v5 and NeurIPS): throughput" if quoting else "Throughput"
    title += " normalised to K=2, M=1"
    return _wide("table2", title, note, results, over_k2m1, ideal_over_k2m1)


def table2_speedup(results: Results) -> Table:
    """The controlled view of Table 2: speedup over K=1 at the same M and N; the paper has no K=1."""
    note = (
        "Speedup over K=1 at the same M, N and re-materialization; the paper prints no K=1 "
        f"column, so nothing is quoted, and nothing was emulated there. {IDEAL} {MARKS}"
    )
    title = "Table 2's runs: speedup over K=1 at the same M"
    return _wide("table2_speedup", title, note, results, over_k1, ideal_over_k1)


def _wide(name: str, title: str, note: str, results: Results, ours: Ours, theirs: Ideal) -> Table:
    """Rows (model, M), for each K a column of each kind; one model measured in several settings has lines of each."""
    from pandas import DataFrame, MultiIndex

    measured = [row for row in rows_of(results, experiment=NAME, fidelity="measured") if row.K > 1]
    found = _settings(results, measured)
    quoting = ours is over_k2m1 and beside_paper(results, NAME)
    modelled = {setting.model: _modelled(results, setting.model, ours) for setting in found}
    kinds = [
        kind for kind in ("emulated", "simulated") if any(some[kind] for some in modelled.values())
    ]
    Ks = sorted({cell.K for cell in paper_table2()} | {row.K for row in measured})
    lines = []
    for setting in found:
        for M in _Ms(setting):
            line: Line = {("", "model"): _short_title(setting, found), ("", "M"): M}
            for K in Ks:
                if quoting:
                    line[f"K={K}", "quoted"] = _printed(quoted(setting.model, K, M))
                line[f"K={K}", "measured"] = _cell(results, matching(setting.rows, K=K, M=M), ours)
                line |= _beside(results, modelled[setting.model], kinds, (K, M), ours)
                line[f"K={K}", "ideal"] = number(theirs(K, M, *setting.plan))
            lines.append(line)
    if not lines:  # nothing with K > 1 of any model
        return table_of_frames(name, title, note, DataFrame(), experiment=NAME, missing=True)
    shown = DataFrame([list(line.values()) for line in lines])
    shown.columns = MultiIndex.from_tuples(list(lines[0]))
    details = [optimizers(results, fixed(rows_of(results, experiment=NAME)))]
    details += [
        f"{model_name(setting.model)}, measured: {setting.details}."
        for setting in found
        if setting.details
    ]
    details += [f"{kind.capitalize()}: {_sizes(modelled, kind)}." for kind in kinds]
    if "emulated" in kinds:
        details.append(emulated.sentence(results))
    details += [words for some in modelled.values() if (words := _base(results, some["simulated"]))]
    if ours is over_k2m1:
        whole = settings(results, rows_of(results, experiment=NAME, fidelity="measured"))
        details += filter(
            None, (falls(results, setting, _short_title(setting, whole)) for setting in whole)
        )
    note = warning(some[kind] for some in modelled.values() for kind in kinds) + note
    return table_of_frames(
        name, title, " ".join(filter(None, [note, *details])), shown, experiment=NAME
    )


def _sizes(modelled: dict[str, dict[str, Protocol]], kind: str) -> str:
    """What the runs of one kind model, once for each model."""
    return "; ".join(dict.fromkeys(some[kind].about for some in modelled.values() if some[kind]))


def _base(results: Results, own: Protocol) -> str:
    """What the base of the modelled cells takes, which the paper's devices may not have had."""
    row = own.rows.get((2, 1)) if own else None
    if row is None or row.peak_gib_max != row.peak_gib_max:
        return ""
    optimizer = row.spec.optimizer
    return (
        f"{model_name(row.model)}, simulated: one N is a comparison, its K=2, M=1 is counted to "
        f"take {memory(row.peak_gib_max)} a stage, whatever the device has (optimizer "
        f"{optimizer})."
    )


def _modelled(results: Results, model: str, ours: Ours) -> dict[str, Protocol]:
    """Runs of the controlled protocol that were emulated, where they have the baseline, and simulated."""
    found = {
        "emulated": protocol(results, model, "emulated"),
        "simulated": protocol(results, model, "controlled"),
    }
    if ours is over_k1 and not any(K == 1 for K, _ in found["emulated"].rows):
        found["emulated"] = Protocol(results, model, {}, {})
    return found


def _beside(
    results: Results,
    modelled: dict[str, Protocol],
    kinds: list[str],
    at: tuple[int, int],
    ours: Ours,
) -> Line:
    """The emulated and the simulated cell; over one stage also against the one that keeps its activations."""
    line: Line = {}
    head = f"K={at[0]}"
    for kind in kinds:
        row = modelled[kind].rows.get(at)
        line[head, kind] = _cell(results, [row] if row else [], ours)
    if ours is over_k1 and "simulated" in kinds:
        kept = modelled["simulated"].kept.get(at[1])
        line[head, _KEPT] = (
            number(modelled["simulated"].throughput(*at) / kept.throughput) if kept else EMPTY
        )
    return line


def _Ms(setting: Setting) -> list[int]:
    printed = {cell.M for cell in paper_table2() if cell.model == setting.model}
    return sorted(printed | {row.M for row in setting.rows})


def _settings(results: Results, rows: list[Run]) -> list[Setting]:
    """The settings that were measured, and a bare one for each of the paper's models that was not.

    Without the paper's numbers beside them, only models that are recorded have lines.
    """
    found = settings(results, rows)
    quoting = beside_paper(results, NAME)
    recorded = {row.model for row in rows_of(results, experiment=NAME)}
    for model in dict.fromkeys(cell.model for cell in paper_table2()):
        if model not in {setting.model for setting in found} and (quoting or model in recorded):
            found.append(Setting(model, ("gpipe", "always"), "", []))
    return sorted(found, key=lambda setting: setting.model)


def _short_title(setting: Setting, others: list[Setting]) -> str:
    """The model alone where the note can say the rest, the full title where a model has several settings."""
    twins = [other for other in others if other.model == setting.model]
    return setting.title if len(twins) > 1 else model_name(setting.model)


def _printed(value: float) -> str:
    """A quoted number with the digits that the paper prints."""
    return EMPTY if isnan(value) else f"{value:g}"


def _cell(results: Results, found: list[Run], ours: Ours) -> str:
    """Our ratio, or why there is none: the status word, that it was not run, or that its baseline was not."""
    if not found:
        return NOT_RUN
    if found[0].status != "done":
        return found[0].status
    text = str(ours(results, found[0]))
    return text if text != EMPTY else "baseline not measured"


def table2_long(results: Results) -> Table:
    """Every run at a fixed N in one line: quoted, ours both ways with baselines, and both closed forms."""
    from pandas import DataFrame

    quoting = beside_paper(results, NAME)
    pairs = settled(results, fixed(rows_of(results, experiment=NAME)))
    lines = [_long(results, *pair, quoting) for pair in pairs]
    theirs = " The paper's cell is over K=2, M=1." if quoting else ""
    note = (
        f"One line a run; each ratio is of throughput and its baseline stands beside it. {IDEAL} "
        f"That is the early one, 4KM/(4M+3(K-1)) over K=1. {PLAIN} Both over the same baseline as "
        f"ours.{theirs} Runs at a fixed N. "
        f"{optimizers(results, fixed(rows_of(results, experiment=NAME)))} {MARKS}"
    )
    shown, data = (DataFrame([line[n] for line in lines]) for n in (0, 1))
    return table_of_frames(
        "table2_long",
        "Table 2, one line a run",
        note,
        shown.fillna(EMPTY),
        data,
        NAME,
        missing=not lines,
    )


def _long(
    results: Results, setting: Setting, row: Run, quoting: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One run as shown and as plain numbers; columns of ours carry their fidelity in their name."""
    K, M, fidelity = row.K, row.M, row.fidelity
    printed = quoted(row.model, K, M)
    keys = ("scale", "model", "K", "M", "N", "D", "schedule", "remat", "status")
    shown = {key: str(getattr(row, key)) for key in keys}
    data = {key: getattr(row, key) for key in ("machine", *keys)}
    if quoting:
        shown["quoted"] = _printed(printed)
        data["quoted"] = printed
    for name, ratio, formula in (
        ("K=2, M=1", over_k2m1(results, row), theory.speedup_over_k2m1),
        ("K=1", over_k1(results, row), theory.speedup_over_k1),
    ):
        column = f"{fidelity} over {name}"
        shown |= {
            column: str(ratio),
            f"{column}: baseline": ratio.baseline,
            f"{column}: verdict": ratio.verdict,
        }
        data |= {column: ratio.value, f"{column}: low": ratio.low, f"{column}: high": ratio.high}
        data |= {f"{column}: rounds": ratio.rounds, f"{column}: baseline": ratio.baseline}
        if quoting and name != "K=1":
            shown[f"{fidelity} / quoted"] = number(ratio.value / printed)
            data[f"{fidelity} / quoted"] = ratio.value / printed
        ideals = {f"over {name}: {form} ideal": formula(K, M, form) for form in ("plain", "early")}
        shown |= {key: number(value) for key, value in ideals.items()}
        data |= ideals
    return shown | {"setting": setting.details}, data | {"setting": setting.details}
