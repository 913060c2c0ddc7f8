"""Table 2 (section 3 of arXiv:1811.06965v5) beside our numbers, and what modelled runs say of it.

A column holds one fidelity; a cell without a number says why.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import isnan

from matplotlib.figure import Figure

from experiments.costs.error import error_bar
from experiments.table2 import divisions, inverse, nulls, predictions
from experiments.table2.claims import evidence
from experiments.table2.figures import bars, bars_caption
from experiments.table2.predictions import CONTROLLED, NOT_FITTING
from experiments.table2.recorded import HEADLINES, Protocol, fixed, protocol, quoted, sizes
from experiments.table2.runs import NAME
from repro.harness.results import Results, Run
from repro.paper import table2 as paper_table2
from repro.report import figures as generic
from repro.report.compare import (
    Setting,
    beside_paper,
    matching,
    optimizers,
    rows_of,
    settings,
)
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, declared, plain
from repro.report.ratio import (
    MARKS,
    ideal_over_k2m1,
    over_k2m1,
)
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number

SHOWN = Shown(
    "table2_predictions",
    ("model", "K", "M", "quoted", "predicted, simulated", "gap", "verdict"),
    figure="table2_divisions",
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    made = [table2(results)]
    if beside_paper(results, NAME):
        cells = predictions.predictions(results)
        bar = error_bar(results)
        made += predictions.tables(cells, bar, evidence(results))
        made += nulls.tables(cells)
        made += divisions.tables(cells, bar)
        made += inverse.tables(cells)
    return made


def answer(tables: Mapping[str, Table]) -> str:
    table = tables["table2_predictions"]
    images, text = ({"model": name, "K": "8", "M": "32"} for name in ("AmoebaNet-D", "Transformer"))
    return (
        "At K=8, M=32 the simulation gives "
        f"{table.number('predicted, simulated', **images)} times the throughput of K=2, M=1 for "
        f"AmoebaNet-D and {table.number('predicted, simulated', **text)} times for the "
        f"Transformer, where the paper prints {table.text('quoted', **images)} and "
        f"{table.text('quoted', **text)}."
    )


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    if beside_paper(results, NAME):
        yield "bars", bars(results, rows), bars_caption(results)
        cells = predictions.predictions(results)
        yield "divisions", divisions.figure(cells, error_bar(results)), divisions.CAPTION
    yield from generic.figure2(results, fixed(rows))


@dataclass(frozen=True)
class Line:
    """One line of Table 2: a model in one measured setting, at one M.

    Attributes:
        title: the model, with its setting where there are several.
        setting: the measured runs; empty where none was measured.
    """

    title: str
    setting: Setting
    M: int
    simulated: Protocol

    @property
    def model(self) -> str:
        return self.setting.model


def table2(results: Results) -> Table:
    """Table 2, rows (model, M), for each K: quoted, ours, ideal; all over K=2, M=1.

    Simulated is the protocol that could have run on the paper's devices.
    """
    lines = _lines(results)
    columns: list[Column[Line]] = [
        Column(("", "model"), lambda line: plain(line.title)),
        Column(("", "M"), lambda line: plain(line.M)),
    ]
    quoting = beside_paper(results, NAME)
    for K in _Ks(results):
        if quoting:
            columns.append(Column((f"K={K}", "quoted"), partial(_quoted, K)))
        columns += _ratios(results, lines, K)
        columns.append(Column((f"K={K}", "ideal"), partial(_ideal, K)))
    note = (
        "Throughput over that of K=2, M=1 of the same model and column; measured at one N, "
        f"simulated with the largest mini-batch that is counted to fit each cell. {MARKS}"
    )
    title = "Table 2 (v5 and NeurIPS): throughput" if quoting else "Throughput"
    title = f"{title} normalised to K=2, M=1"
    origin = _what_was_run(results, lines)
    return declared("table2", title, note, lines, columns, NAME, origin=origin)


def _Ks(results: Results) -> list[int]:
    measured = rows_of(results, experiment=NAME, fidelity="measured")
    printed = {cell.K for cell in paper_table2()}
    return sorted(printed | {run.K for run in measured if run.K > 1})


def _lines(results: Results) -> list[Line]:
    """A line for each measured setting and M, and for each model of the paper that has none.

    Without the paper's numbers beside them, only models that are recorded have lines.
    """
    runs = rows_of(results, experiment=NAME)
    measured = [run for run in matching(runs, fidelity="measured") if run.K > 1]
    found = settings(results, measured)
    with_lines = {setting.model for setting in found}
    for model in dict.fromkeys(cell.model for cell in paper_table2()):
        wanted = beside_paper(results, NAME) or matching(runs, model=model)
        if wanted and model not in with_lines:
            found.append(Setting(model, ("gpipe", "always"), "", []))
    models = [setting.model for setting in found]
    lines = []
    for setting in sorted(found, key=lambda setting: setting.model):
        model = setting.model
        title = setting.title if models.count(model) > 1 else model_name(model)
        protocol_runs = protocol(results, model, HEADLINES.get(model, CONTROLLED))
        printed = {cell.M for cell in paper_table2() if cell.model == model}
        Ms = sorted(printed | {run.M for run in setting.rows})
        lines += [Line(title, setting, M, protocol_runs) for M in Ms]
    return lines


def _ratios(results: Results, lines: list[Line], K: int) -> list[Column[Line]]:
    """A column for each of measured and simulated that has runs.

    What is emulated shows our runtime and not the paper's devices.
    """

    def measured(line: Line) -> Cell:
        runs = matching(line.setting.rows, K=K, M=line.M)
        return _ratio(results, runs[0] if runs else None)

    def simulated(line: Line) -> Cell:
        cell = _ratio(results, line.simulated.run(K, line.M))
        if line.simulated.N(K, line.M) == 0:
            return plain("nothing fits")
        if False in (line.simulated.fits(K, line.M), line.simulated.fits(2, 1)):
            return plain(f"{cell.text}{NOT_FITTING}")
        return cell

    columns: list[Column[Line]] = [Column((f"K={K}", "measured"), measured)]
    if any(line.simulated for line in lines):
        columns.append(Column((f"K={K}", "simulated"), simulated))
    return columns


def _ratio(results: Results, run: Run | None) -> Cell:
    """The ratio, or why there is none: a status, or that its baseline was not measured."""
    if run is None:
        return plain(NOT_RUN)
    if not run.done:
        return plain(run.status)
    text = str(over_k2m1(results, run))
    return plain("baseline not measured" if text == EMPTY else text)


def _quoted(K: int, line: Line) -> Cell:
    value = quoted(line.model, K, line.M)
    return plain(EMPTY if isnan(value) else f"{value:g}")


def _ideal(K: int, line: Line) -> Cell:
    return plain(number(ideal_over_k2m1(K, line.M, *line.setting.plan)))


def _what_was_run(results: Results, lines: list[Line]) -> str:
    """The sizes behind each fidelity: `Measured: ...; Simulated: ...`."""
    settings_of = {line.setting.title: line.setting for line in lines}
    measured = [setting.title for setting in settings_of.values() if setting.details]
    parts = [f"Measured: {'; '.join(measured)}."] if measured else []
    present = sizes(line.simulated for line in lines)
    if present:
        parts.append(f"Simulated: {present}.")
    parts.append(optimizers(fixed(rows_of(results, experiment=NAME))))
    return " ".join(part for part in parts if part)
