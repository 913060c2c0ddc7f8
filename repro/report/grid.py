"""Tables declared as lines and columns, and a grid of recorded runs to take cells from."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from math import inf, isnan
from typing import Any, Generic, TypeVar

import pandas as pd

from repro.harness.frame import Frame
from repro.harness.results import Run
from repro.report.compare import fidelities
from repro.report.ratio import Ratio
from repro.report.table import (
    EMPTY,
    NOT_RUN,
    Cell,
    Name,
    Table,
    number,
    percent,
)

Line = TypeVar("Line")


@dataclass(frozen=True)
class Column(Generic[Line]):
    """A declared column: its names, and the cell of a line.

    Attributes:
        key: name that a reader sees, or group and name; empty for the csv file alone.
        cell: of a line.
        csv: name in the csv file: None for the same, empty where readers alone see it.
        ends: names in the csv file of the ends of the interval, if it has one.
    """

    key: Name
    cell: Callable[[Line], Cell]
    csv: Name | None = None
    ends: tuple[Name, Name] | None = None


@dataclass(frozen=True)
class Grid:
    """Recorded runs by fidelity and the keys of a row and column.

    A run of Table 2 has the keys ("simulated", 4, 32): fidelity, K and M.

    Attributes:
        runs: by their keys, in the order of the plan.
    """

    runs: Mapping[tuple[Hashable, ...], Run]

    @classmethod
    def of(cls, runs: Iterable[Run], key: Callable[[Run], tuple[Hashable, ...]]) -> "Grid":
        """The grid of these runs; of several with the same keys it holds the first.

        Args:
            runs: recorded runs, in the order of the plan.
            key: gives the keys of a run's row and column.
        """
        by_key: dict[tuple[Hashable, ...], Run] = {}
        for run in runs:
            by_key.setdefault((run.fidelity, *key(run)), run)
        return cls(by_key)

    def run(self, fidelity: str, *key: Hashable) -> Run | None:
        """The run with these keys; None where none was planned."""
        return self.runs.get((fidelity, *key))

    def cell(self, of: Callable[[Run], Cell], fidelity: str, *key: Hashable) -> Cell:
        """The cell of the run with these keys; its status if it is not finished."""
        run = self.run(fidelity, *key)
        if run is None:
            return Cell()
        return of(run) if run.done else Cell(text=status_of(run))

    @property
    def keys(self) -> list[tuple[Hashable, ...]]:
        """The keys without the fidelity, in the order of the plan."""
        return list(dict.fromkeys(keys[1:] for keys in self.runs))

    @property
    def fidelities(self) -> list[str]:
        return fidelities(self.runs.values())


def status_of(run: Run) -> str:
    return NOT_RUN if run.status == "planned" else run.status


def plain(value: Any) -> Cell:
    """A text or whole number, shown as it is."""
    return Cell(value, str(value))


def amount(value: float, digits: int = 2) -> Cell:
    return Cell(value, number(value, digits))


def share(value: float) -> Cell:
    return Cell(value, percent(value))


def milliseconds(seconds: float) -> Cell:
    """Seconds in the csv file, shown in ms."""
    return Cell(seconds, number(1e3 * seconds, 1))


def quotient(ratio: Ratio) -> Cell:
    """A ratio of two runs with its interval, ~ where that spans 1."""
    return Cell(ratio.value, str(ratio), ratio.low, ratio.high)


def estimate(median_and_ends: tuple[float, float, float], form: str = ".2f") -> Cell:
    """A median and the ends of its interval, which are NaN for few rounds."""
    median, low, high = median_and_ends
    text = EMPTY if isnan(median) else format(median, form)
    if not isnan(low):
        text += f" [{low:{form}}, {high:{form}}]"
    return Cell(median, text, low, high)


def met_or_missed(value: float, *, at_least: float = -inf, at_most: float = inf) -> Cell:
    """A goal and whether a number meets it: `at most 4: missed by 0.5`; the csv file has the same.

    Args:
        value: the number; NaN where nothing was run.
        at_least: the goal, if larger is better.
        at_most: the goal, if smaller is better.
    """
    goal = f"at most {at_most:g}" if at_least == -inf else f"at least {at_least:g}"
    missed_by = max(at_least - value, value - at_most)
    if isnan(value):
        return plain(f"{goal}: {NOT_RUN}")
    return plain(f"{goal}: met" if missed_by <= 0 else f"{goal}: missed by {missed_by:.2g}")


def spread(key: tuple[str, str], cell: Callable[[Line], Cell]) -> Column[Line]:
    """A column with the ends of its interval under their usual names."""
    group, name = key
    return Column(key, cell, ends=((group, f"{name}: low"), (group, f"{name}: high")))


def place_column(lines: Sequence[Line], where: Callable[[Line], str]) -> list[Column[Line]]:
    """The column with the place of each line; none if all lines are of one place."""
    if len({where(line) for line in lines}) < 2:
        return []
    return [Column("where", lambda line: plain(where(line)))]


def settings(row_of: Callable[[Line], Run], *names: str) -> list[Column[Line]]:
    """Columns of attributes of a run: K, M, its scale."""
    return [Column(name, partial(_setting, row_of, name)) for name in names]


def _setting(row_of: Callable[[Line], Run], name: str, line: Line) -> Cell:
    return plain(getattr(row_of(line), name))


def declared(
    table: str,
    title: str,
    note: str,
    lines: Iterable[Line],
    columns: Sequence[Column[Line]],
    experiment: str,
    *,
    origin: str = "",
) -> Table:
    """The table of these columns, with a row for each line."""
    lines = list(lines)
    shown: dict[Name, list[str]] = {}
    data: dict[Name, list[Any]] = {}
    for column in columns:
        cells = [column.cell(line) for line in lines]
        if column.key:
            shown[column.key] = [cell.text for cell in cells]
        if csv := column.key if column.csv is None else column.csv:
            data[csv] = [cell.value for cell in cells]
        if column.ends:
            data[column.ends[0]] = [cell.low for cell in cells]
            data[column.ends[1]] = [cell.high for cell in cells]
    frames = _frame(shown), _frame(data)
    return Table(table, title, note, *frames, experiment, runs_in(lines), origin)


def _frame(columns: dict[Name, list[Any]]) -> Frame:
    """A frame of these columns; their names are pairs if one of them has a group."""
    names = list(columns)
    if any(isinstance(name, tuple) for name in names):
        names = [name if isinstance(name, tuple) else ("", name) for name in names]
    frame = pd.DataFrame(dict(enumerate(columns.values())), dtype=object)
    return frame.set_axis(pd.Index(names), axis=1)


def runs_in(line: Any) -> list[Run]:
    """The runs that a line of a table holds: it is one, or has them in its fields."""
    if isinstance(line, Run):
        return [line]
    if is_dataclass(line):
        parts: Iterable[Any] = [getattr(line, field.name) for field in fields(line)]
    elif isinstance(line, Mapping):
        parts = line.values()
    elif isinstance(line, (list, tuple)):
        parts = line
    else:
        parts = ()
    return [run for part in parts for run in runs_in(part)]
