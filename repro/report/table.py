"""A table as a value: columns and cells, rendered as csv, Markdown, LaTeX and HTML."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import isnan, nan
from pathlib import Path
from typing import Any

from pandas import DataFrame, MultiIndex

from repro.harness.results import Run

NOT_RUN = "not run"
EMPTY = "-"
Name = str | tuple[str, str]  # of a column: a name, or a group and a name

_LONG_TEXT = 48  # characters from which on a cell may be broken into several lines
_INTERVAL = re.compile(r"(-?[\d.]+) (\[.*?\])( ~)?")
_MISSING = re.compile(
    rf"{EMPTY}|({NOT_RUN}|baseline not|skipped|oom|timeout|failed|interrupted|planned|running).*"
)


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Attributes:
        value: a number or text for the csv file.
        text: what a reader sees.
        low: lower end of the interval, for the csv file.
        high: upper end of it.
    """

    value: Any = nan
    text: str = EMPTY
    low: float = nan
    high: float = nan


@dataclass(frozen=True)
class Heading:
    """The names of one column.

    Attributes:
        shown: name that a reader sees; empty for a column of the csv file alone.
        csv: name in the csv file; empty for a column that readers alone see.
        ends: names in the csv file of the ends of the interval, if it has one.
    """

    shown: Name = ""
    csv: Name = ""
    ends: tuple[Name, Name] | None = None


@dataclass(frozen=True)
class Table:
    """One table of the report.

    Attributes:
        name: file stem.
        title: one line.
        note: one or two sentences: what ratios are over, what marks mean.
        headings: of the columns.
        rows: a cell for each heading.
        experiment: that it belongs to; empty for none.
        folded: whether the page shows it only on request.
        missing: whether it only says that nothing was run.
        runs: that its lines hold; empty for lines that name no run, such as parts of a step.
    """

    name: str
    title: str
    note: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    experiment: str = ""
    folded: bool = False
    missing: bool = False
    runs: Sequence[Run] = ()

    @property
    def shown(self) -> DataFrame:
        """The texts that a reader sees."""
        indexes = [i for i, heading in enumerate(self.headings) if heading.shown]
        names = [self.headings[i].shown for i in indexes]
        return _frame(names, [[row[i].text for i in indexes] for row in self.rows])

    @property
    def data(self) -> DataFrame:
        """The values of the csv file, each interval in three columns."""
        names = []
        columns = []
        for i, heading in enumerate(self.headings):
            cells = [row[i] for row in self.rows]
            if heading.csv:
                names.append(heading.csv)
                columns.append([cell.value for cell in cells])
            if heading.ends:
                names += heading.ends
                columns += [[cell.low for cell in cells], [cell.high for cell in cells]]
        return _frame(names, [list(values) for values in zip(*columns, strict=True)])

    def csv(self) -> str:
        """The values, for other programs."""
        data = self.data
        data.columns = [_flat(name) for name in data.columns]
        return csv_text(data)

    def markdown(self) -> str:
        """The texts in GitHub's table syntax, with title and note."""
        shown = self.shown
        head = [_markdown(_flat(name)) for name in shown.columns]
        lines = [head, ["---"] * len(head)]
        lines += [[_markdown(text) for text in row] for row in shown.itertuples(index=False)]
        body = [f"| {' | '.join(line)} |" for line in lines]
        title, note = _markdown(self.title), _markdown(self.note)
        return "\n".join([f"**{title}**", "", *body, "", note, ""])

    def latex(self) -> str:
        """The texts as a booktabs table."""
        shown = self.shown
        head, *body = [[_flat(name) for name in shown.columns], *shown.itertuples(index=False)]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            _latex_row(head),
            r"\midrule",
            *(_latex_row(row) for row in body),
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_latex(self.title)}. {_latex(self.note)}}}",
            r"\end{table}",
        ]
        return "\n".join([*lines, ""])

    def html(self) -> str:
        """The texts as a table element: intervals small, missing cells grey, long texts broken."""
        shown = self.shown
        lines = [f'<table class="{self.name}">', "<thead>", *_html_head(list(shown.columns))]
        lines += ["</thead>", "<tbody>"]
        for row in shown.itertuples(index=False):
            lines.append(f"<tr>{''.join(_html_cell(text) for text in row)}</tr>")
        return "\n".join([*lines, "</tbody>", "</table>"])

    def write(self, directory: Path) -> list[Path]:
        """Write `name`.csv, .md and .tex into a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        texts = {"csv": self.csv(), "md": self.markdown(), "tex": self.latex()}
        paths = []
        for kind, text in texts.items():
            path = directory / f"{self.name}.{kind}"
            path.write_text(text, encoding="utf-8")
            paths.append(path)
        return paths


def not_run(name: str, title: str, note: str, experiment: str) -> Table:
    """A table without results, which says what to run. The report leaves it out."""
    headings = (Heading("run", "run"), Heading("status", "status"))
    status = f"{NOT_RUN}: ./run_all.sh {experiment}"
    row = (Cell("none", "none"), Cell(status, status))
    return Table(name, title, note, headings, (row,), experiment, missing=True)


def csv_text(frame: DataFrame) -> str:
    """A csv file in which every cell is a number, a text or empty.

    A column of mappings becomes one column for each of their keys: `labels.data`. The parts of a
    list stand in one cell with semicolons between them: `4;5`.
    """
    columns: dict[str, list[Any]] = {}
    for name in frame.columns:
        cells = frame[name].tolist()
        mappings = [cell if isinstance(cell, Mapping) else {} for cell in cells]
        keys = dict.fromkeys(key for mapping in mappings for key in mapping)
        if keys:
            columns |= {
                f"{name}.{key}": [_csv_cell(mapping.get(key)) for mapping in mappings]
                for key in keys
            }
        elif not any(isinstance(cell, Mapping) for cell in cells):
            columns[str(name)] = [_csv_cell(cell) for cell in cells]
    # As objects, or whole numbers would become fractions in columns with empty cells.
    return DataFrame(columns, dtype=object).to_csv(index=False, lineterminator="\n")


def number(value: Any, digits: int = 2, unit: str = "") -> str:
    """A number as text with fixed digits; `-` where there is none."""
    if value is None or isnan(float(value)):
        return EMPTY
    return f"{float(value):.{digits}f}{unit}"


def memory(gib: float) -> str:
    """`23 GiB`; below one in MiB; one more digit where there are few."""
    size, unit = (gib, "GiB") if gib >= 1 else (1024 * gib, "MiB")
    return f"{size:.{0 if size >= 10 else 1}f} {unit}"


def percent(value: Any) -> str:
    """A share as text: 0.158 -> 15.8%."""
    return EMPTY if value is None or isnan(float(value)) else f"{100 * float(value):.1f}%"


def _frame(names: Sequence[Name], rows: Sequence[Sequence[Any]]) -> DataFrame:
    """A frame of these rows; its columns are pairs if one of them has a group."""
    if not any(isinstance(name, tuple) for name in names):
        return DataFrame(rows, columns=list(names))
    pairs = [name if isinstance(name, tuple) else ("", name) for name in names]
    return DataFrame(rows, columns=MultiIndex.from_tuples(pairs))


def _flat(name: Name) -> str:
    """The name of a column in one line: ("K=2", "measured") -> "K=2 measured"."""
    parts = name if isinstance(name, tuple) else (name,)
    return " ".join(part for part in parts if part)


def _csv_cell(value: Any) -> Any:
    """A list as text; what has no parts as it is."""
    if isinstance(value, (list, tuple)):
        return ";".join(str(_csv_cell(part)) for part in value)
    return json.dumps(value) if isinstance(value, Mapping) else value


def _markdown(text: str) -> str:
    """Text that stays inside its cell."""
    return re.sub(r"([\\|*_~<>`])", r"\\\1", text.replace("\n", " "))


def _latex_row(texts: Sequence[str]) -> str:
    return " & ".join(_latex(text) for text in texts) + r" \\"


def _latex(text: str) -> str:
    """Text with LaTeX's own characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text.replace("\n", " "))


def _html_head(names: Sequence[Name]) -> list[str]:
    """A row of names, below a row of groups if there are groups."""
    rows = []
    if any(isinstance(name, tuple) for name in names):
        groups = [(group, len(list(pairs))) for group, pairs in groupby(name[0] for name in names)]
        rows.append([f'<th colspan="{count}">{escape(group)}</th>' for group, count in groups])
        names = [name[1] for name in names]
    rows.append([f"<th>{escape(_flat(name))}</th>" for name in names])
    return [f"<tr>{''.join(cells)}</tr>" for cells in rows]


def _html_cell(text: str) -> str:
    if _MISSING.fullmatch(text):
        return f'<td class="missing">{escape(text)}</td>'
    if interval := _INTERVAL.fullmatch(text):
        value, ends, mark = interval.groups()
        return f"<td><b>{value}</b>{mark or ''} <small>{ends}</small></td>"
    if len(text) >= _LONG_TEXT:
        return f'<td class="words">{escape(text)}</td>'
    return f"<td>{escape(text)}</td>"
