"""Which 12 bytes a parameter has, and which M: the printed activations against four counts.

A reading is an accounting (`runs.ACCOUNTINGS`) with an M. It explains a model's printed
activations if it is close to every one of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from experiments.table1.fits import (
    MODELS,
    activations,
    largest_size,
    printed_fit,
    recorded_fits,
    search_fit,
    unit,
)
from experiments.table1.laws import HOLDS
from experiments.table1.runs import ACCOUNTINGS, COUNTED_M, DROPOUT, NAME
from repro.harness.results import Results
from repro.harness.spec import Optimizer
from repro.paper import table1
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent

CLOSE = HOLDS  # how far off an activation may be that is explained: as far as where a law holds
MEDIAN = "median difference"
MEDIAN_WITH_DROPOUT = f"median, attention dropout {DROPOUT['attention_dropout']:g}"


class Reading(NamedTuple):
    optimizer: Optimizer
    M: int

    @property
    def name(self) -> str:
        """`two slots, M=32`."""
        return f"{ACCOUNTINGS[self.optimizer]}, M={self.M}"


READINGS = [Reading(optimizer, M) for optimizer in ACCOUNTINGS for M in COUNTED_M]


@dataclass(frozen=True)
class Line:
    """One column of Table 1 but Naive-1, or the summary of a model's columns.

    Attributes:
        printed: activations, in the paper's unit.
        counted: the same by each reading that was counted.
        largest: where each reading's search ended.
    """

    model: str
    column: str
    printed: float
    counted: dict[Reading, float]
    largest: dict[Reading, str]

    def difference(self, reading: Reading) -> float:
        """Of the counted activations from the printed ones, relative to these."""
        return self.counted[reading] / self.printed - 1


@dataclass(frozen=True)
class Summary:
    """What the lines of one model come to.

    Attributes:
        medians: of the differences without their signs, for each reading counted in all lines.
        worst: the greatest of them.
    """

    model: str
    name: str
    medians: dict[Reading, float]
    worst: dict[Reading, float]

    @property
    def favoured(self) -> Reading | None:
        """The reading with the lowest median of those that are close to every line, if any is."""
        close = [reading for reading, worst in self.worst.items() if worst <= CLOSE]
        return min(close, key=lambda reading: self.medians[reading], default=None)

    def nearest_M(self, optimizer: Optimizer) -> int:
        """The M with which an accounting has its lowest median."""
        readings = [reading for reading in self.medians if reading.optimizer == optimizer]
        return min(readings, key=lambda reading: self.medians[reading]).M


def accounting_lines(
    results: Results, changed: Mapping[str, float] = MappingProxyType({})
) -> list[Line]:
    """The columns of Table 1 but Naive-1, whose activations no reading comes near.

    `changed` are arguments of the model that the paper does not state.
    """
    fits = recorded_fits(results, fidelity="counted")
    lines = []
    for size in table1():
        if size.name == "Naive-1":
            continue
        counted, largest = {}, {}
        for reading in READINGS:
            fit = printed_fit(fits, size, *reading, changed)
            if fit is not None:
                counted[reading] = activations(fit) / unit(size.model)[1]
            largest[reading] = largest_size(search_fit(fits, size.model, size.name, *reading))
        lines.append(Line(size.model, size.name, size.peak_activation_gb, counted, largest))
    return [line for line in lines if line.counted]


def summary(lines: Iterable[Line], model: str, name: str = MEDIAN) -> Summary:
    lines = [line for line in lines if line.model == model]
    medians, worst = {}, {}
    for reading in READINGS:
        if lines and all(reading in line.counted for line in lines):
            differences = [abs(line.difference(reading)) for line in lines]
            medians[reading], worst[reading] = median(differences), max(differences)
    return Summary(model, name, medians, worst)


def accountings(results: Results) -> Table:
    """A line for each column of Table 1, summaries for each model; three cells for each reading."""
    columns_of_table1 = accounting_lines(results)
    with_dropout = accounting_lines(results, DROPOUT)
    summaries = []
    lines: list[Line | Summary] = []
    for model in MODELS:
        of_model = [line for line in columns_of_table1 if line.model == model]
        dropped = summary(with_dropout, model, MEDIAN_WITH_DROPOUT)
        if of_model:
            summaries.append(summary(of_model, model))
            lines += [*of_model, summaries[-1]]
        if dropped.medians:
            lines.append(dropped)
    columns: list[Column[Line | Summary]] = [
        Column(("", "model"), lambda line: plain(model_name(line.model))),
        Column(("", "column"), _column),
        Column(("activations", "quoted"), _printed),
    ]
    for reading in READINGS:
        columns += [
            Column((reading.name, "activations, counted"), partial(_counted, reading)),
            Column((reading.name, "difference"), partial(_difference, reading)),
            Column((reading.name, "largest, counted"), partial(_largest, reading)),
        ]
    title = (
        "Table 1: what the 12 bytes of a parameter are, and which M; activations in GB "
        "(AmoebaNet-D) and GiB (Transformer)"
    )
    note = (
        "One slot: the 12 bytes are weights, gradients and mean square; two slots: weights, mean "
        f"square and momentum, and gradients are activations. {verdict(summaries)}"
    )
    return declared("table1_accountings", title, note, lines, columns, NAME)


def verdict(summaries: Iterable[Summary]) -> str:
    """Which reading the printed activations favour for each model, and whether they tell M."""
    whole = [each for each in summaries if each.medians.keys() == set(READINGS)]
    if not whole:
        return "Not every reading has been counted."
    clauses, nearest = [], []
    for each in whole:
        name, favoured = model_name(each.model), each.favoured
        if favoured is None:
            clauses.append(f"no reading is within {CLOSE:.0%} of every printed cell of {name}")
            continue
        clauses.append(
            f"of those within {CLOSE:.0%} of every printed cell of {name}, {favoured.name} is "
            f"favoured by its median difference of {percent(each.medians[favoured])}"
        )
        Ms: dict[Optimizer, int] = {
            optimizer: each.nearest_M(optimizer) for optimizer in ACCOUNTINGS
        }
        if len(set(Ms.values())) > 1:
            nearest += [f"M={m} with {ACCOUNTINGS[optimizer]}" for optimizer, m in Ms.items()]
    if nearest:
        clauses.append(f"M is not identified, since the nearest is {' and '.join(nearest)}")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _column(line: Line | Summary) -> Cell:
    return plain(line.column if isinstance(line, Line) else line.name)


def _printed(line: Line | Summary) -> Cell:
    if isinstance(line, Summary):
        return Cell()
    return Cell(line.printed, f"{line.printed:g}")


def _counted(reading: Reading, line: Line | Summary) -> Cell:
    if isinstance(line, Summary) or reading not in line.counted:
        return Cell()
    size = line.counted[reading]
    return Cell(size, number(size))


def _difference(reading: Reading, line: Line | Summary) -> Cell:
    if isinstance(line, Summary):
        value = line.medians.get(reading)
        return Cell() if value is None else Cell(value, percent(value))
    if reading not in line.counted:
        return Cell()
    value = line.difference(reading)
    return Cell(value, f"{100 * value:+.1f}%")


def _largest(reading: Reading, line: Line | Summary) -> Cell:
    return plain(line.largest[reading] if isinstance(line, Line) else EMPTY)
