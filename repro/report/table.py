"""A table as two frames, texts for readers and values for the csv file."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import isnan
from pathlib import Path
from typing import Any

from markupsafe import Markup

from repro.harness.frame import Frame

NOT_RUN = "not run"

_INTERVAL = re.compile(r"([-+]?[\d.,]+(?:e[-+]\d+)?[BM]?) (\([^()]* to [^()]*\))")
_SHORT = 18  # characters up to which a cell of the page stays on one line
# How a formula begins in a spreadsheet, and what begins so and can be none: -3.5, +1e-3, -.
_FORMULA = ("=", "+", "-", "@", "\t", "\n")
_ARITHMETIC = re.compile(r"[-+][-+\d.,%eE ]*")


@dataclass(frozen=True)
class Cell:
    value: Any  # a number or text for the csv file
    text: str  # what a reader sees


@dataclass(frozen=True)
class Table:
    """One table of the report; a reader sees `shown`, the csv file holds `data`.

    In `data` an interval has two columns more.
    """

    name: str
    title: str
    note: str
    shown: Frame
    data: Frame

    @property
    def missing(self) -> bool:
        return not len(self.shown)

    @property
    def names(self) -> list[str]:
        return list(self.shown.columns)

    def csv(self) -> str:
        return csv_text(self.data.to_dict("list"))

    def markdown(self) -> str:
        """The texts in GitHub's table syntax, with title and note."""
        texts = (self.names, *self.shown.to_numpy())
        lines = [[_markdown(text) for text in line] for line in texts]
        lines.insert(1, ["---"] * len(self.names))
        body = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([f"**{_markdown(self.title)}**", "", *body, "", _markdown(self.note), ""])

    def write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        for kind, text in (("csv", self.csv()), ("md", self.markdown())):
            (directory / f"{self.name}.{kind}").write_text(text, encoding="utf-8")


def csv_text(columns: Mapping[str, Sequence[Any]]) -> str:
    """A csv file of these columns, in which every cell is a number, a text or empty.

    A column of mappings becomes one column for each of their keys: `labels.data`. The parts of a
    list stand in one cell with semicolons between them: `4;5`.
    """
    flat: dict[str, list[Any]] = {}
    for name, cells in columns.items():
        mappings = [cell if isinstance(cell, dict) else {} for cell in cells]
        keys = dict.fromkeys(key for mapping in mappings for key in mapping)
        for key in keys:
            flat[f"{name}.{key}"] = [_csv_cell(mapping.get(key)) for mapping in mappings]
        if not any(isinstance(cell, dict) for cell in cells):
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


def _csv_cell(value: Any) -> Any:
    """A list as text, an unknown number as nothing, ten digits of others; never a formula."""
    if isinstance(value, (list, tuple)):
        return guarded(";".join(str(_csv_cell(part)) for part in value))
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, float) and not value.is_integer():
        # The last digits of a sum differ between processors, for which numpy has other kernels.
        return None if isnan(value) else float(f"{value:.10g}")
    return guarded(value)


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_~<>`])", r"\\\1", text.replace("\n", " "))


def cell(text: str) -> Markup:
    """A cell of the page, in which the ends of an interval are small."""
    if interval := _INTERVAL.fullmatch(text):
        value, ends = interval.groups()
        return Markup("<td><b>{}</b> <small>{}</small></td>").format(value, ends)
    return Markup("<td{}>{}</td>").format(Markup(" class=long" * (len(text) > _SHORT)), text)
