"""Table 2 (section 3 of arXiv:1811.06965v5) beside our numbers, and what modelled runs say of it.

A column holds one fidelity; a cell without a number says why.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import isnan, nan

from matplotlib.figure import Figure

from experiments.costs.error import error_bar
from experiments.table2 import divisions, emulated, inverse, nulls, predictions, sensitivity
from experiments.table2.claims import evidence
from experiments.table2.figures import bars, bars_caption
from experiments.table2.predictions import CONTROLLED, NOT_FITTING
from experiments.table2.recorded import HEADLINES, Protocol, fixed, protocol, quoted, sizes
from experiments.table2.runs import NAME
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
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, amount, declared, plain, quotient
from repro.report.ratio import (
    MARKS,
    Ratio,
    ideal_over_k1,
    ideal_over_k2m1,
    over_k1,
    over_k2m1,
)
from repro.report.style import model_name
from repro.report.table import EMPTY, NOT_RUN, Table, number

_OVER_KEPT = "simulated, over K=1 without recompute"
SHOWN = Shown(
    "table2_predictions",
    ("model", "K", "M", "quoted", "predicted, simulated", "gap", "verdict"),
    figure="table2_divisions",
)


def tables(results: Results) -> list[Table]:
    """Table 2 and what the modelled runs say of it; none if it was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    made = [table2(results), table2_speedup(results)]
    if beside_paper(results, NAME):
        cells = predictions.predictions(results)
        bar = error_bar(results)
        made += predictions.tables(cells, bar, evidence(results))
        made += nulls.tables(cells)
        made += divisions.tables(cells, bar)
        made += inverse.tables(cells)
        made += sensitivity.tables(results)
    return [*made, *emulated.tables(results), table2_long(results)]


def answer(tables: Mapping[str, Table]) -> str:
    """Both models at K=8, M=32."""
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
    """Table 2 as bars and divided by other cells, and Figure 2."""
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
        M: micro-batches.
        simulated: the simulated runs.
    """

    title: str
    setting: Setting
    M: int
    simulated: Protocol

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.setting.model


def table2(results: Results) -> Table:
    """Table 2, rows (model, M), for each K: quoted, ours, ideal; all over K=2, M=1.

    Simulated is the protocol that could have run on the paper's devices.
    """
    lines = _lines(results, HEADLINES)
    columns = [*_HEAD]
    quoting = beside_paper(results, NAME)
    for K in _Ks(results):
        if quoting:
            columns.append(Column((f"K={K}", "quoted"), partial(_quoted, K)))
        columns += _ratios(results, lines, K, over_k2m1)
        columns.append(Column((f"K={K}", "ideal"), partial(_ideal, ideal_over_k2m1, K)))
    note = (
        "Throughput over that of K=2, M=1 of the same model and column; measured at one N, "
        f"simulated with the largest mini-batch that is counted to fit each cell. {MARKS}"
    )
    title = "Table 2 (v5 and NeurIPS): throughput" if quoting else "Throughput"
    title = f"{title} normalised to K=2, M=1"
    origin = _what_was_run(results, lines)
    return declared("table2", title, note, lines, columns, NAME, origin=origin)


def table2_speedup(results: Results) -> Table:
    """The controlled view: speedup over K=1 at the same M and N, which the paper does not print."""
    lines = _lines(results, dict.fromkeys(HEADLINES, CONTROLLED))
    columns = [*_HEAD]
    for K in _Ks(results):
        columns += _ratios(results, lines, K, over_k1)
        if any(line.simulated for line in lines):
            columns.append(Column((f"K={K}", _OVER_KEPT), partial(_over_kept, K)))
        columns.append(Column((f"K={K}", "ideal"), partial(_ideal, ideal_over_k1, K)))
    note = (
        "Speedup over K=1 at the same M, N and re-materialization; the paper prints no K=1 "
        f"column, so nothing is quoted; {NOT_FITTING}: counted not to fit the device. {MARKS}"
    )
    title = "Table 2's runs: speedup over K=1 at the same M"
    origin = _what_was_run(results, lines)
    return declared("table2_speedup", title, note, lines, columns, NAME, origin=origin)


_HEAD: list[Column[Line]] = [
    Column(("", "model"), lambda line: plain(line.title)),
    Column(("", "M"), lambda line: plain(line.M)),
]


def _Ks(results: Results) -> list[int]:
    """The K of the paper and of measured pipelines."""
    measured = rows_of(results, experiment=NAME, fidelity="measured")
    printed = {cell.K for cell in paper_table2()}
    return sorted(printed | {run.K for run in measured if run.K > 1})


def _lines(results: Results, simulated: Mapping[str, str]) -> list[Line]:
    """A line for each measured setting and M, and for each model of the paper that has none.

    Without the paper's numbers beside them, only models that are recorded have lines.

    Args:
        results: recorded runs.
        simulated: model -> the protocol of its simulated runs.
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
        protocol_runs = protocol(results, model, simulated.get(model, CONTROLLED))
        printed = {cell.M for cell in paper_table2() if cell.model == model}
        Ms = sorted(printed | {run.M for run in setting.rows})
        lines += [Line(title, setting, M, protocol_runs) for M in Ms]
    return lines


def _ratios(
    results: Results, lines: list[Line], K: int, over: Callable[[Results, Run], Ratio]
) -> list[Column[Line]]:
    """A column for each of measured and simulated that has runs.

    What is emulated shows our runtime and not the paper's devices: it is in `table2_emulated`.
    """

    def measured(line: Line) -> Cell:
        runs = matching(line.setting.rows, K=K, M=line.M)
        return _ratio(results, runs[0] if runs else None, over)

    def simulated(line: Line) -> Cell:
        cell = _ratio(results, line.simulated.run(K, line.M), over)
        if line.simulated.N(K, line.M) == 0:
            return plain("nothing fits")
        base = (1, line.M) if over is over_k1 else (2, 1)
        if False in (line.simulated.fits(K, line.M), line.simulated.fits(*base)):
            return plain(f"{cell.text}{NOT_FITTING}")
        return cell

    columns: list[Column[Line]] = [Column((f"K={K}", "measured"), measured)]
    if any(line.simulated for line in lines):
        columns.append(Column((f"K={K}", "simulated"), simulated))
    return columns


def _ratio(results: Results, run: Run | None, over: Callable[[Results, Run], Ratio]) -> Cell:
    """The ratio, or why there is none: a status, or that its baseline was not measured."""
    if run is None:
        return plain(NOT_RUN)
    if not run.done:
        return plain(run.status)
    text = str(over(results, run))
    return plain("baseline not measured" if text == EMPTY else text)


def _quoted(K: int, line: Line) -> Cell:
    value = quoted(line.model, K, line.M)
    return plain(EMPTY if isnan(value) else f"{value:g}")


def _ideal(over: Callable[[int, int, str, str], float], K: int, line: Line) -> Cell:
    return plain(number(over(K, line.M, *line.setting.plan)))


def _over_kept(K: int, line: Line) -> Cell:
    """Simulated, over the stage that keeps all activations and so computes less."""
    kept = line.simulated.run(1, line.M, "never")
    return plain(number(line.simulated.throughput(K, line.M) / kept.throughput if kept else nan))


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


@dataclass(frozen=True)
class LongLine:
    """One run at a fixed N, its setting, and its ratios by baseline."""

    setting: Setting
    run: Run
    ratios: dict[str, Ratio]

    @property
    def quoted(self) -> float:
        """The paper's cell; NaN where it has none."""
        return quoted(self.run.model, self.run.K, self.run.M)


_FORMULAS = {"K=2, M=1": theory.speedup_over_k2m1, "K=1": theory.speedup_over_k1}


def table2_long(results: Results) -> Table:
    """Every run at a fixed N in one line: quoted, both ratios with baselines, both ideals."""
    runs = fixed(rows_of(results, experiment=NAME))
    lines = [
        LongLine(setting, run, {"K=2, M=1": over_k2m1(results, run), "K=1": over_k1(results, run)})
        for setting, run in settled(results, runs)
    ]
    quoting = beside_paper(results, NAME)
    columns: list[Column[LongLine]] = [Column("machine", lambda line: plain(line.run.machine))]
    columns += [Column(name, partial(_attribute, name)) for name in _LONG_KEYS]
    if quoting:
        columns.append(Column("quoted", _quoted_or_not))
    setting: Column[LongLine] = Column("setting", lambda line: plain(line.setting.details))
    for i, fidelity in enumerate(dict.fromkeys(line.run.fidelity for line in lines)):
        for base in _FORMULAS:
            columns += _ratio_columns(fidelity, base, quoting and base == "K=2, M=1")
            if i == 0:
                columns += [
                    Column(f"over {base}: {form} ideal", partial(_closed_form, base, form))
                    for form in ("plain", "early")
                ]
        if i == 0:
            columns.append(setting)
    note = (
        "One line a run at a fixed N; each ratio is of throughput, its baseline stands beside it, "
        "and the ideals are the closed forms over the same baseline (early: recomputed while a "
        f"stage waits for the gradient). {MARKS}"
    )
    return declared("table2_long", "Table 2, one line a run", note, lines, columns, NAME)


_LONG_KEYS = ("scale", "fidelity", "model", "K", "M", "N", "D", "schedule", "remat", "status")


def _attribute(name: str, line: LongLine) -> Cell:
    return plain(getattr(line.run, name))


def _quoted_or_not(line: LongLine) -> Cell:
    return Cell(line.quoted, EMPTY if isnan(line.quoted) else f"{line.quoted:g}")


def _closed_form(base: str, form: theory.Form, line: LongLine) -> Cell:
    return amount(_FORMULAS[base](line.run.K, line.run.M, form))


def _ratio_columns(fidelity: str, base: str, over_quoted: bool) -> list[Column[LongLine]]:
    """The ratio of one fidelity over one baseline; empty cells for runs of another fidelity."""
    key = f"{fidelity} over {base}"

    def of(cell: Callable[[LongLine, Ratio], Cell], line: LongLine) -> Cell:
        return cell(line, line.ratios[base]) if line.run.fidelity == fidelity else Cell()

    columns: list[Column[LongLine]] = [
        Column(
            key,
            partial(of, lambda _, ratio: quotient(ratio)),
            ends=(f"{key}: low", f"{key}: high"),
        ),
        Column("", partial(of, lambda _, ratio: Cell(ratio.rounds)), f"{key}: rounds"),
        Column(f"{key}: baseline", partial(of, lambda _, ratio: plain(ratio.baseline))),
        Column(f"{key}: verdict", partial(of, lambda _, ratio: Cell(text=ratio.verdict)), ""),
    ]
    if over_quoted:
        over = partial(of, lambda line, ratio: amount(ratio.value / line.quoted))
        columns.append(Column(f"{fidelity} / quoted", over))
    return columns
