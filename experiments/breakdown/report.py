"""The breakdown of a step (NeurIPS version of arXiv:1811.06965, Table 4), part by part.

The pie bears neither model nor K nor M. The paper's text says two partitions; M=16 is inferred from
the pie's own bubble, so that row is fitted and proves nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import isnan, nan

from matplotlib.figure import Figure

from experiments.breakdown.claims import PIE, evidence
from experiments.breakdown.runs import NAME, K, M
from experiments.table2.recorded import at_papers_size
from repro.claims.all_claims import verdict_on
from repro.claims.cells import SHARE, cell_id
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.bars import drawable, stack
from repro.report.compare import beside_paper, fidelities, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, declared, plain, share, status_of
from repro.report.rounds import parts
from repro.report.style import PART_NAMES, PARTS, grid, model_name
from repro.report.table import EMPTY, Table

LONG_NAMES = PART_NAMES | {"imbalance": "load imbalance", "update": "weight update"}
# the pie's, then ours
_ORDER = ("computation", "recompute", "imbalance", "bubble", "setup", "update", "transfer")

PART: Column[str] = Column("part", lambda part: plain(LONG_NAMES.get(part, part)))
QUOTED: Column[str] = Column(("quoted", "pie"), lambda part: share(PIE.get(part, nan)))
# The pipeline of equal stages that recomputes early: its step is 4M + 3(K-1) forwards long.
_STEP = theory.step_time(K, M, "early")
ARITHMETIC = {
    "computation": 3 * M / _STEP,
    "recompute": M / _STEP,
    "bubble": theory.bubble(K, M, "early"),
}
IDEAL: Column[str] = Column(("ideal", "arithmetic"), lambda part: share(ARITHMETIC.get(part, nan)))
SHOWN = Shown(
    NAME,
    (
        "part",
        "quoted pie",
        "ideal arithmetic",
        "measured AmoebaNet-D",
        "measured Transformer",
        "simulated AmoebaNet-D",
        "verdict",
    ),
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [by_part(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table, parts = tables[NAME], ("computation", "recompute", "bubble")
    ours = [table.text("simulated AmoebaNet-D", part=part) for part in parts]
    printed = [table.text("quoted pie", part=part) for part in parts]
    return (
        f"In a simulated step of AmoebaNet-D the computation takes {ours[0]}, recompute {ours[1]} "
        f"and the bubble {ours[2]}; the paper's pie has {printed[0]}, {printed[1]} and "
        f"{printed[2]}."
    )


def named_runs(results: Results) -> dict[tuple[str, str], Run]:
    """Model and fidelity -> the run with that K and M; with its place where a model has several."""
    rows = rows_of(results, experiment=NAME, K=K, M=M)
    order = fidelities(rows)
    rows.sort(key=lambda run: (order.index(run.fidelity), model_name(run.model)))
    pairs = [(run.model, run.fidelity) for run in rows]
    runs = {}
    for run in rows:
        name = model_name(run.model)
        if pairs.count((run.model, run.fidelity)) > 1:
            name += f" ({where(results, run)})"
        runs[name, run.fidelity] = run
    return runs


def share_of(results: Results, run: Run, part: str) -> Cell:
    """A part's share of K x step; without a finished run, why there is none."""
    cell = share(parts(run).get(part, nan))
    if run.done:
        return cell
    return replace(cell, text=status_of(run))


def by_part(results: Results) -> Table:
    """One line a part: quoted, each run's share, and how near a full-size simulation is."""
    runs = named_runs(results)
    quoting = beside_paper(results, NAME)
    columns = [PART, QUOTED, IDEAL] if quoting else [PART, IDEAL]
    for (name, fidelity), run in runs.items():
        columns.append(Column((fidelity, name), partial(share_of, results, run)))

    def against_pie(part: str, run: Run) -> Cell:
        off = parts(run)[part] - PIE.get(part, nan)
        return Cell(off, EMPTY if isnan(off) else f"{100 * off:+.1f} points")

    for (name, fidelity), run in runs.items():
        comparable = fidelity == "simulated" and run.done and at_papers_size(run)
        if quoting and comparable:
            cell = partial(against_pie, run=run)
            columns.append(Column(("simulated against quoted", name), cell))
    if quoting:
        columns.append(Column(("", "verdict"), _verdict_column(results)))
    title = "Where the time of a step goes"
    note = f"Shares of K x step at K={K}, M={M}, median over rounds."
    if quoting:
        title += " (NeurIPS Table 4, not in v5)"
        note += (
            f" K is from the paper's text and M={M} from the pie's own bubble; the tolerance is "
            f"{SHARE:g} points."
        )
    return declared(NAME, title, note, _ORDER, columns, NAME)


def _verdict_column(results: Results) -> Callable[[str], Cell]:
    ours = evidence(results)

    def verdict(part: str) -> Cell:
        if part not in PIE:
            return Cell("")
        identity = cell_id(NAME, part)
        return plain(verdict_on(identity, ours.get(identity)))

    return verdict


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    caption = (
        f"Where a step at K={K}, M={M} goes; grey is idle time, by its reason. Where an unequal "
        "cut shortens the wait, the imbalance is negative and is taken off the bubble; medians "
        "need not add up to 100."
    )
    yield "parts", figure(results), caption


def figure(results: Results) -> Figure | None:
    runs = {key: run for key, run in named_runs(results).items() if run.done and parts(run)}
    if not runs:
        return None
    bars = []
    if beside_paper(results, NAME):
        bars.append(("quoted: NeurIPS Table 4", {part: 100 * PIE[part] for part in PIE}))
    for (name, fidelity), run in runs.items():
        size = "" if at_papers_size(run) else f", {run.scale} size"
        shares = drawable(parts(run))
        percents = {part: 100 * value for part, value in shares.items()}
        bars.append((f"{fidelity}{size}: {name}", percents))
    drawn, ((axes,),) = grid(1, 1, 0.9 + 0.34 * len(bars))
    stack(axes, bars)
    axes.set(xlabel="share of K x step time (%)", title=f"K={K}, M={M}")
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    return drawn
