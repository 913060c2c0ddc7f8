"""A table as a value: columns and cells, rendered as csv, Markdown, LaTeX and HTML."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO
from itertools import groupby
from math import isnan, nan
from pathlib import Path
from typing import Any

from pandas import DataFrame, MultiIndex

from repro.harness.results import Run
from repro.io.files import fresh

NOT_RUN = "not run"
EMPTY = "-"
Name = str | tuple[str, str]  # of a column: a name, or a group and a name

_INTERVAL = re.compile(r"([-+]?[\d.]+(?:e[-+]\d+)?) (\[.*?\])( ~)?")
_SHORT = 18  # characters up to which a cell of the page stays on one line
_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?( |$)")
# How a formula begins in a spreadsheet, and what begins so and can be none: -3.5, +1e-3, -.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")
_ARITHMETIC = re.compile(r"[-+][-+\d.,%eE ]*")
_MISSING = re.compile(
    rf"{EMPTY}|({NOT_RUN}|baseline not|skipped|oom|timeout|failed|interrupted|planned|running).*"
)


_LATEX = str.maketrans(
    {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\n": " "}
    | {character: "\\" + character for character in "&%$#_{}"}
)


@dataclass(frozen=True)
class Cell:
    value: Any = nan  # a number or text for the csv file
    text: str = EMPTY  # what a reader sees
    low: float = nan
    high: float = nan


@dataclass(frozen=True)
class Heading:
    """The names of one column; `ends` are those of its interval in the csv file, if it has one."""

    shown: Name = ""  # empty for a column of the csv file alone
    csv: Name = ""  # empty for a column that readers alone see
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
        missing: whether it only says that nothing was run.
        runs: that its lines hold; empty for lines that name no run, such as parts of a step.
        origin: what was run, and which commits and machines recorded it where they differ. It
            stands below the note in files; the page has the same for the whole section.
    """

    name: str
    title: str
    note: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    experiment: str = ""
    missing: bool = False
    runs: Sequence[Run] = ()
    origin: str = ""

    @property
    def caption(self) -> str:
        return f"{self.note} {self.origin}" if self.origin else self.note

    @property
    def shown(self) -> DataFrame:
        return _frame(*self._texts())

    def _texts(self) -> tuple[list[Name], list[list[str]]]:
        """The names of the columns that a reader sees, and the texts of each line."""
        indexes = [i for i, heading in enumerate(self.headings) if heading.shown]
        names = [self.headings[i].shown for i in indexes]
        return names, [[row[i].text for i in indexes] for row in self.rows]

    @property
    def data(self) -> DataFrame:
        """The values of the csv file, each interval in three columns."""
        columns = self._values()
        return _frame([*columns], [list(line) for line in zip(*columns.values(), strict=True)])

    def _values(self) -> dict[Name, list[Any]]:
        columns: dict[Name, list[Any]] = {}
        for i, heading in enumerate(self.headings):
            cells = [row[i] for row in self.rows]
            if heading.csv:
                columns[heading.csv] = [cell.value for cell in cells]
            if heading.ends:
                low, high = heading.ends
                columns[low] = [cell.low for cell in cells]
                columns[high] = [cell.high for cell in cells]
        return columns

    def only(self, columns: Sequence[str]) -> "Table":
        """The table with these columns alone, as Markdown heads them; others are left out."""
        kept = [i for i, heading in enumerate(self.headings) if _flat(heading.shown) in columns]
        headings = [self.headings[i] for i in kept]
        return replace(self, headings=headings, rows=[[row[i] for i in kept] for row in self.rows])

    def where(self, column: str, texts: Sequence[str]) -> "Table":
        (at,) = [i for i, heading in enumerate(self.headings) if _flat(heading.shown) == column]
        return replace(self, rows=[row for row in self.rows if row[at].text in texts])

    @property
    def columns(self) -> int:
        return sum(1 for heading in self.headings if heading.shown)

    def text(self, column: str, /, **wanted: str) -> str:
        """The text in `column` of the line that has the `wanted` texts; both as Markdown heads.

        Raises:
            LookupError: if there is no such cell, or it has no number.
        """
        names = [_flat(heading.shown) for heading in self.headings]
        for row in self.rows:
            line = {name: cell.text for name, cell in zip(names, row, strict=True) if name}
            if all(line.get(name) == text for name, text in wanted.items()):
                text = line.get(column, EMPTY)
                if not _MISSING.fullmatch(text):
                    return text
        raise LookupError(f"{self.name} has no {column} for {wanted}")

    def number(self, column: str, /, **wanted: str) -> str:
        return self.text(column, **wanted).split()[0]

    def numbers(self, column: str) -> list[str]:
        """The numbers of a column from the least to the greatest, without their intervals.

        Raises:
            LookupError: if there is none.
        """
        at = [i for i, heading in enumerate(self.headings) if _flat(heading.shown) == column]
        cells = [row[i].text for row in self.rows for i in at]
        texts = [text.split()[0] for text in cells if _NUMBER.match(text)]
        if not texts:
            raise LookupError(f"{self.name} has no number in {column}")
        return sorted(texts, key=float)

    def csv(self) -> str:
        return csv_text({_flat(name): cells for name, cells in self._values().items()})

    def markdown(self) -> str:
        """The texts in GitHub's table syntax, with title and note."""
        names, texts = self._texts()
        head = [_markdown(_flat(name)) for name in names]
        lines = [head, ["---"] * len(head)]
        lines += [[_markdown(text) for text in row] for row in texts]
        body = [f"| {' | '.join(line)} |" for line in lines]
        title, note = _markdown(self.title), _markdown(self.caption)
        return "\n".join([f"**{title}**", "", *body, "", note, ""])

    def latex(self) -> str:
        names, body = self._texts()
        head = [_flat(name) for name in names]
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
            rf"\caption{{{_latex(self.title)}. {_latex(self.caption)}}}",
            r"\end{table}",
        ]
        return "\n".join([*lines, ""])

    def html(self) -> str:
        """The texts as a table element: intervals small, missing cells grey, texts to the left."""
        names, rows = self._texts()
        texts = [_is_text([row[i] for row in rows]) for i in range(len(names))]
        lines = [f'<table class="{escape(self.name)}">', "<thead>", *_html_head(names, texts)]
        lines += ["</thead>", "<tbody>"]
        for row in rows:
            cells = [_html_cell(cell, is_text) for cell, is_text in zip(row, texts, strict=True)]
            lines.append(f"<tr>{''.join(cells)}</tr>")
        return "\n".join([*lines, "</tbody>", "</table>"])

    def write(self, directory: Path) -> list[Path]:
        directory.mkdir(parents=True, exist_ok=True)
        texts = {"csv": self.csv(), "md": self.markdown(), "tex": self.latex()}
        paths = []
        for kind, text in texts.items():
            path = directory / f"{self.name}.{kind}"
            fresh(path).write_text(text, encoding="utf-8")
            paths.append(path)
        return paths


def not_run(name: str, title: str, note: str, experiment: str) -> Table:
    """A table without results, which says what to run. The report leaves it out."""
    headings = (Heading("run", "run"), Heading("status", "status"))
    status = f"{NOT_RUN}: ./run_all.sh {experiment}"
    row = (Cell("none", "none"), Cell(status, status))
    return Table(name, title, note, headings, (row,), experiment, missing=True)


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """A csv file of these columns, in which every cell is a number, a text or empty.

    A column of mappings becomes one column for each of their keys: `labels.data`. The parts of a
    list stand in one cell with semicolons between them: `4;5`.
    """
    flat: dict[str, list[Any]] = {}
    for name, cells in columns.items():
        mappings = [cell if isinstance(cell, Mapping) else {} for cell in cells]
        keys = dict.fromkeys(key for mapping in mappings for key in mapping)
        if keys:
            flat |= {
                f"{name}.{key}": [_csv_cell(mapping.get(key)) for mapping in mappings]
                for key in keys
            }
        elif not any(isinstance(cell, Mapping) for cell in cells):
            flat[name] = [_csv_cell(cell) for cell in cells]
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(guarded, flat))
    writer.writerows(zip(*flat.values(), strict=True))
    return text.getvalue()


def guarded(value: Any) -> Any:
    """A csv file's cell that no spreadsheet takes for a formula: such a text begins with '."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", "\n")  # csv quotes the latter alone, and either begins a row
    return f"'{text}" if text.startswith(_FORMULA) and not _ARITHMETIC.fullmatch(text) else text


def unguarded(text: str) -> str:
    return text[1:] if guarded(text[1:]) == text else text


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
    """A list as text, an unknown number as nothing, ten digits of others; never a formula."""
    if isinstance(value, (list, tuple)):
        return guarded(";".join(str(_csv_cell(part)) for part in value))
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, float) and not value.is_integer():
        # The last digits of a sum differ between processors, for which numpy has other kernels.
        return None if isnan(value) else float(f"{value:.10g}")
    return guarded(value)


def _markdown(text: str) -> str:
    """Text that stays inside its cell."""
    return re.sub(r"([\\|*_~<>`])", r"\\\1", text.replace("\n", " "))


def _latex_row(texts: Sequence[str]) -> str:
    return " & ".join(_latex(text) for text in texts) + r" \\"


def _latex(text: str) -> str:
    return text.translate(_LATEX)


def _is_text(cells: Sequence[str]) -> bool:
    """Whether at least half of a column's cells are more letters than digits and signs."""
    present = [cell for cell in cells if cell and not _MISSING.fullmatch(cell)]
    texts = [cell for cell in present if 2 * sum(map(str.isalpha, cell)) > len(cell)]
    return 0 < len(present) <= 2 * len(texts)


def _html_head(names: Sequence[Name], texts: Sequence[bool]) -> list[str]:
    """A row of names, below a row of groups if there are groups; texts as in the cells below."""
    rows = []
    if any(isinstance(name, tuple) for name in names):
        pairs = [name if isinstance(name, tuple) else ("", name) for name in names]
        groups = [(group, len(list(pairs))) for group, pairs in groupby(pair[0] for pair in pairs)]
        rows.append([f'<th colspan="{count}">{escape(group)}</th>' for group, count in groups])
        names = [name for _, name in pairs]
    rows.append(
        [
            f"<th{' class=text' * is_text}>{escape(_flat(name))}</th>"
            for name, is_text in zip(names, texts, strict=True)
        ]
    )
    return [f"<tr>{''.join(cells)}</tr>" for cells in rows]


def _html_cell(text: str, is_text: bool) -> str:
    """A cell; classes: text stands to the left, missing is grey, long may be broken."""
    if interval := _INTERVAL.fullmatch(text):
        value, ends, mark = interval.groups()
        return f'<td class="long"><b>{value}</b>{mark or ""} <small>{ends}</small></td>'
    has = {"text": is_text, "missing": _MISSING.fullmatch(text), "long": len(text) > _SHORT}
    names = " ".join(name for name, present in has.items() if present)
    return f'<td class="{names}">{escape(text)}</td>' if names else f"<td>{escape(text)}</td>"
