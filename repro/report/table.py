"""A table as a value, and its three files: csv (numbers), md and tex (as shown)."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

NOT_RUN = "not run"
EMPTY = "-"
_SENTENCE = 48  # characters of a cell from which on it may take several lines


@dataclass(frozen=True)
class Table:
    """One table of the report.

    Attributes:
        name: file stem.
        title: one line.
        note: what every ratio in it is over, and what marks mean.
        shown: the cells as text; columns may be pairs (group, name).
        data: the same as plain numbers for the csv file; `shown` where left out.
        experiment: the one it belongs to, if any.
        folded: whether the page shows it only when it is asked for.
        missing: whether it only says that nothing was run.
    """

    name: str
    title: str
    note: str
    shown: "DataFrame"
    data: "DataFrame | None" = None
    experiment: str = ""
    folded: bool = False
    missing: bool = False

    def markdown(self) -> str:
        """GitHub's table syntax with title and note."""
        head = [_md(name) for name in _flat(self.shown)]
        lines = [f"**{_md(self.title)}**", "", _line(head), _line(["---"] * len(head))]
        lines += [_line([_md(cell) for cell in row]) for row in self.shown.itertuples(index=False)]
        return "\n".join([*lines, "", _md(self.note), ""])

    def latex(self) -> str:
        """A booktabs table, all text escaped."""
        head = _flat(self.shown)
        lines = [
            " & ".join(map(_tex, cells)) + r" \\"
            for cells in [head, *self.shown.itertuples(index=False)]
        ]
        body = [
            f"\\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
        ]
        body += [r"\bottomrule", r"\end{tabular}"]
        caption = f"\\caption{{{_tex(self.title)}. {_tex(self.note)}}}"
        return "\n".join([r"\begin{table}", r"\centering", *body, caption, r"\end{table}", ""])

    def html(self) -> str:
        """A table element; intervals are set small, missing cells grey, and sentences on several lines."""
        from pandas import option_context

        shown = self.shown.fillna(EMPTY)
        with option_context("display.max_colwidth", None):
            markup = shown.to_html(index=False, border=0, escape=True, classes=self.name)
        markup = re.sub(
            r"<td>(-?[\d.]+) (\[.*?\])( ~)?</td>", r"<td><b>\1</b>\3 <small>\2</small></td>", markup
        )
        statuses = "skipped|oom|timeout|failed|interrupted|planned|running"
        missing = rf"<td>({EMPTY}|(?:{NOT_RUN}|baseline not|{statuses}).*?)</td>"
        markup = re.sub(missing, r'<td class="missing">\1</td>', markup)
        return re.sub(rf"<td>(.{{{_SENTENCE},}})</td>", r'<td class="words">\1</td>', markup)

    def write(self, directory: Path) -> list[Path]:
        """Write csv, md and tex into `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        data = self.shown if self.data is None else self.data
        data = data.copy()
        data.columns = _flat(data)
        texts = {
            "csv": csv_text(data),
            "md": self.markdown(),
            "tex": self.latex(),
        }
        paths = []
        for kind, text in texts.items():
            paths.append(directory / f"{self.name}.{kind}")
            paths[-1].write_text(text, encoding="utf-8")
        return paths


def csv_text(frame: "DataFrame") -> str:
    """A csv file in which every cell is a number, a text or empty, so that other programs can read it.

    A column of mappings becomes one column for each of their keys: `labels.data`. The parts of a
    list stand in one cell with semicolons between them: `4;5`.
    """
    from pandas import DataFrame

    columns: dict[str, list[Any]] = {}
    for name in frame.columns:
        cells = frame[name].tolist()
        mappings = [cell if isinstance(cell, Mapping) else {} for cell in cells]
        keys = dict.fromkeys(key for mapping in mappings for key in mapping)
        if keys:
            columns |= {
                f"{name}.{key}": [_cell(mapping.get(key)) for mapping in mappings] for key in keys
            }
        elif not any(isinstance(cell, Mapping) for cell in cells):
            columns[str(name)] = [_cell(cell) for cell in cells]
    # As objects, or whole numbers would become fractions in columns with empty cells.
    return DataFrame(columns, dtype=object).to_csv(index=False, lineterminator="\n")


def _cell(value: Any) -> Any:
    """A list as text; all else, which has no parts, as it is."""
    if isinstance(value, (list, tuple)):
        return ";".join(str(_cell(part)) for part in value)
    return json.dumps(value) if isinstance(value, Mapping) else value


def framed(
    name: str,
    title: str,
    note: str,
    pairs: Sequence[tuple[Mapping[Any, Any], Mapping[Any, Any]]],
    experiment: str,
    *,
    folded: bool = False,
    missing: str = "",
) -> Table:
    """The table of these lines, (as shown, as numbers), keyed by (group, name).

    Without any it says what is `missing`; by default it says what to run, and the report leaves it
    out.
    """
    from pandas import DataFrame, MultiIndex

    if not pairs:
        shown = DataFrame(
            [{"run": "none", "status": missing or f"{NOT_RUN}: ./run_all.sh {experiment}"}]
        )
        return Table(name, title, note, shown, experiment=experiment, missing=not missing)
    frames = []
    for lines in zip(*pairs, strict=True):
        keys = list(dict.fromkeys(key for line in lines for key in line))
        frames.append(DataFrame([[line.get(key) for key in keys] for line in lines]))
        if any(isinstance(key, tuple) for key in keys):
            keys = MultiIndex.from_tuples(
                [key if isinstance(key, tuple) else ("", key) for key in keys]
            )
        frames[-1].columns = keys
    shown, data = frames
    return Table(name, title, note, shown.fillna(EMPTY), data, experiment, folded)


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


def _flat(frame: "DataFrame") -> list[str]:
    """Column names as one line each: ("K=2", "measured") -> "K=2 measured"."""
    pairs = [name if isinstance(name, tuple) else (name,) for name in frame.columns]
    return [" ".join(str(part) for part in pair if part) for pair in pairs]


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _md(value: Any) -> str:
    """Text that stays inside its cell."""
    return re.sub(r"([\\|*_~<>`])", r"\\\1", str(value).replace("\n", " "))


def _tex(value: Any) -> str:
    """Text with TeX's own characters escaped."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: "\\" + character for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in str(value).replace("\n", " "))
