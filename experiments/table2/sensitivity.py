"""How much Table 2's predictions depend on each figure of the device: halved, then doubled.

A ratio is over K=2, M=1 with the same figure changed alike, as a device that is slower or faster
than its profile says would give it. The seconds were recorded with the runs, each with its own best
cut.
"""

from dataclasses import dataclass
from functools import partial
from math import nan

from experiments.table2.recorded import MODELS, Protocol, protocol, sizes, titled
from experiments.table2.runs import NAME
from repro.harness.results import Results
from repro.harness.schema import Dependence
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

CELLS = ((8, 32), (8, 4), (2, 32))  # K, M
BASE = (2, 1)
# A device's figure -> its name in the table.
FIGURES = {
    "matmul_flops": "rate of matrix multiplication",
    "other_flops": "rate of other operators",
    "bytes_per_second": "memory bandwidth",
    "launch_s": "launch of an operator",
    "tile": "tile of the matrix unit",
    "setup_s": "set-up of a step",
    "link_bytes_per_second": "link bandwidth",
    "link_latency_s": "link latency",
}
_NAMES = {f"K={K}, M={M}": (K, M) for K, M in CELLS}
# Kind of a line -> the names of its numbers in the csv file.
_NUMBERS = {
    "as it is": ("as it is",),
    "changed": ("halved", "doubled"),
    "range": ("lowest", "highest"),
}
Place = tuple[int, int]
Pair = tuple[float, float]  # with a figure halved, and doubled


@dataclass(frozen=True)
class Line:
    """The prediction as it is, one figure changed, or the widest range.

    Attributes:
        model: name of the model.
        figure: that is changed, or what the line is.
        basis: what the figure's value rests on.
        kind: "as it is", "changed" or "range".
        ratios: of each cell; the second is NaN of a single one.
        movers: of a range, the figure that moves each cell most.
    """

    model: str
    figure: str
    basis: str
    kind: str
    ratios: dict[Place, Pair]
    movers: dict[Place, str]

    def text(self, place: Place) -> str:
        """`4.38`, `4.28 / 4.17`, or `4.11 to 4.51: launch of an operator`."""
        first, second = self.ratios[place]
        if self.kind == "as it is":
            return number(first)
        if self.kind == "changed":
            return f"{number(first)} / {number(second)}"
        return f"{number(first)} to {number(second)}: {FIGURES[self.movers[place]]}"


def tables(results: Results) -> list[Table]:
    """One line a model and figure; none before runs that recorded it."""
    protocols = [protocol(results, model, "controlled") for model in MODELS]
    changed = [(runs, ratios(runs)) for runs in protocols if runs]
    lines = [line for runs, by_figure in changed if by_figure for line in _lines(runs, by_figure)]
    if not lines:
        return []
    columns: list[Column[Line]] = [
        Column(("", "model"), lambda line: plain(model_name(line.model))),
        Column(("", "figure"), lambda line: plain(line.figure)),
        Column(("", "rests on"), lambda line: plain(line.basis)),
    ]
    columns += [Column(("", name), partial(_text, place), "") for name, place in _NAMES.items()]
    for kind, ends in _NUMBERS.items():
        for name, place in _NAMES.items():
            columns += [
                Column("", partial(_value, kind, index, place), (name, end))
                for index, end in enumerate(ends)
            ]
    note = (
        "Simulated throughput over that of K=2, M=1 with a figure of the device halved / doubled, "
        "in the base too, every stage cut anew; the widest range is of single figures. A factor of "
        "two is no error estimate, and nothing is fitted."
    )
    title = titled(
        "How far Table 2's predictions depend on each figure of the device",
        [runs for runs in protocols if runs],
    )
    origin = f"Models: {sizes(protocols)}."
    return [declared("table2_sensitivity", title, note, lines, columns, NAME, origin=origin)]


def ratios(runs: Protocol) -> dict[str, dict[Place, Pair]]:
    """Figure -> cell -> ratios over the base; without figures that a run did not record."""
    steps = {place: _recorded(runs, place) for place in (*CELLS, BASE)}
    found = {}
    for name in FIGURES:
        if all(name in recorded for recorded in steps.values()):
            base = steps[BASE][name]
            found[name] = {
                place: (
                    base.halved / steps[place][name].halved,
                    base.doubled / steps[place][name].doubled,
                )
                for place in CELLS
            }
    return found


def widest(
    runs: Protocol, by_figure: dict[str, dict[Place, Pair]], place: Place
) -> tuple[float, float, str]:
    """The lowest and highest ratio that one figure gives, and the figure that moves it most."""
    as_it_is = runs.ratio(*place)
    spans = {name: (as_it_is, *changed[place]) for name, changed in by_figure.items()}
    lowest = min(min(span) for span in spans.values())
    highest = max(max(span) for span in spans.values())
    widths = {name: max(span) - min(span) for name, span in spans.items()}
    return lowest, highest, max(widths, key=lambda name: widths[name])


def _recorded(runs: Protocol, place: Place) -> dict[str, Dependence]:
    modelled = runs.modelled(*place)
    return modelled.sensitivity if modelled else {}


def _lines(runs: Protocol, by_figure: dict[str, dict[Place, Pair]]) -> list[Line]:
    model, base = runs.model, _recorded(runs, BASE)
    single = {place: (runs.ratio(*place), nan) for place in CELLS}
    lines = [Line(model, "as it is", EMPTY, "as it is", single, {})]
    for name, changed in by_figure.items():
        lines.append(Line(model, FIGURES[name], base[name].basis, "changed", changed, {}))
    ranges = {place: widest(runs, by_figure, place) for place in CELLS}
    ends = {place: (low, high) for place, (low, high, _) in ranges.items()}
    movers = {place: name for place, (_, _, name) in ranges.items()}
    return [*lines, Line(model, "widest range", EMPTY, "range", ends, movers)]


def _text(place: Place, line: Line) -> Cell:
    return Cell(text=line.text(place))


def _value(kind: str, index: int, place: Place, line: Line) -> Cell:
    return Cell(line.ratios[place][index] if line.kind == kind else nan)
