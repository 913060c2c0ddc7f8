"""Table 2 divided by other cells than K=2, M=1, its least certain one.

M=32 over M=4 shows what more micro-batches gain at each K. A row over its own K=2 shows what more
stages gain.
"""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.costs.error import ErrorBar, meaning, with_error
from experiments.table2.predictions import Prediction
from experiments.table2.recorded import HEADLINES, MODELS, quoted, titled
from experiments.table2.runs import KS, MS, NAME
from repro.paper import theory
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.style import (
    FIDELITIES,
    MARKERS,
    MODEL_ERROR,
    QUOTED,
    THEORY,
    grid,
    model_name,
    ticks,
)
from repro.report.table import Table

_KS = KS[1:]
_LESS, _MORE = MS[1], MS[-1]  # 4 and 32


@dataclass(frozen=True)
class Division:
    """One quotient of two cells of a model.

    Attributes:
        K: stages of the cell above.
        under: K and M of the cell below.
    """

    model: str
    K: int
    M: int
    under: tuple[int, int]

    @property
    def quoted(self) -> float:
        return quoted(self.model, self.K, self.M) / quoted(self.model, *self.under)

    @property
    def ideal(self) -> float:
        """The quotient of the ideal's, which recomputes early."""
        above = theory.speedup_over_k1(self.K, self.M, "early")
        return above / theory.speedup_over_k1(*self.under, "early")

    def simulated(self, cells: dict[tuple[str, int, int], Prediction], name: str) -> float:
        above, below = cells[self.model, self.K, self.M], cells[self.model, *self.under]
        return above.ratio(name) / below.ratio(name)


def divisions(model: str) -> list[Division]:
    """M=32 over M=4 at each K, then each row over its own K=2."""
    by_m = [Division(model, K, _MORE, (K, _LESS)) for K in _KS]
    by_k = [Division(model, K, M, (_KS[0], M)) for M in MS for K in _KS[1:]]
    return [*by_m, *by_k]


def tables(cells: list[Prediction], bar: ErrorBar | None) -> list[Table]:
    """The quotients; none before a simulation.

    Args:
        bar: error of the cost model; None where it is not known.
    """
    return [quotients(cells, bar)] if cells else []


def quotients(cells: list[Prediction], bar: ErrorBar | None) -> Table:
    by_place = {(cell.model, cell.K, cell.M): cell for cell in cells}
    models = dict.fromkeys(cell.model for cell in cells)
    columns: list[Column[Division]] = [
        Column("model", lambda line: Cell(line.model, model_name(line.model))),
        Column("cell", lambda line: plain(f"K={line.K}, M={line.M}")),
        Column("over", lambda line: plain(f"K={line.under[0]}, M={line.under[1]}")),
        Column("quoted", lambda line: amount(line.quoted, 3)),
        Column("ideal", lambda line: amount(line.ideal, 3)),
        Column("quoted over ideal", lambda line: amount(line.quoted / line.ideal, 3)),
        Column(
            "headline, simulated",
            lambda line: with_error(line.simulated(by_place, HEADLINES[line.model]), bar),
            ends=("headline: low", "headline: high"),
        ),
    ]
    lines = [line for model in models for line in divisions(model)]
    note = (
        "Throughput of one printed cell over another, which does not need the paper's K=2, M=1. "
        "Where quoted over ideal is 1, the printed gain is that of a pipeline without any loss"
        f"{meaning(bar)}."
    )
    shown = [found for cell in cells for found in cell.protocols.values()]
    title = titled("Table 2 divided by other cells: what M and K gain", shown)
    return declared("table2_divisions", title, note, lines, columns, NAME)


CAPTION = (
    "Left: throughput at M=32 over M=4 at each K; right: each row over its own K=2; vertical lines "
    "are the median error of the cost model. AmoebaNet-D's printed gain from micro-batches is the "
    "ideal's and its gain from stages is not, but for the Transformer it is the other way round, "
    "except at M=4."
)


def figure(cells: list[Prediction], bar: ErrorBar | None) -> Figure | None:
    models = [model for model in MODELS if any(cell.model == model for cell in cells)]
    if not models:
        return None
    by_place = {(cell.model, cell.K, cell.M): cell for cell in cells}
    made, axes = grid(len(models), 2, 2.7)
    for row, model in zip(axes, models, strict=True):
        lines = divisions(model)
        _panel(row[0], [line for line in lines if line.under[0] == line.K], by_place, bar)
        row[0].set(title=f"{model_name(model)}: M=32 over M=4", ylabel="throughput ratio")
        _panel(row[1], [line for line in lines if line.under[0] != line.K], by_place, bar)
        row[1].set(title=f"{model_name(model)}: over K=2 at the same M")
    handles = [
        Line2D([], [], marker=MARKERS["quoted"], ls="", color=QUOTED, label="quoted"),
        Line2D([], [], color=THEORY, lw=1.2, label="ideal"),
        Line2D(
            [], [], marker=MARKERS["simulated"], ls="", color=FIDELITIES["simulated"],
            label="simulated",
        ),
    ]  # fmt: skip
    made.legend(handles=handles, loc="outside lower center", ncols=3)
    return made


def _panel(
    axes: Axes,
    lines: list[Division],
    cells: dict[tuple[str, int, int], Prediction],
    bar: ErrorBar | None,
) -> None:
    for x, line in enumerate(lines):
        axes.hlines(line.ideal, x - 0.35, x + 0.35, color=THEORY, lw=1.2)
        axes.plot(x - 0.12, line.quoted, MARKERS["quoted"], color=QUOTED, label="quoted")
        simulated = line.simulated(cells, HEADLINES[line.model])
        low, high = bar.ends(simulated) if bar else (simulated, simulated)
        axes.errorbar(
            x + 0.12,
            simulated,
            [[simulated - low], [high - simulated]],
            fmt=MARKERS["simulated"],
            color=FIDELITIES["simulated"],
            label="simulated",
            **MODEL_ERROR,
        )
    ticks(axes, list(range(len(lines))), [f"K={line.K}\nM={line.M}" for line in lines])
    axes.set_ylim(bottom=0.9)
    axes.margins(x=0.05)
    axes.grid(axis="x", visible=False)
