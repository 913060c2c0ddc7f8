"""The report of an experiment: `experiments/<name>/report.py`, found by the experiment's name.

Such a file may have

- `tables(results)`, whose tables stand before the generic ones;
- `figures(results, rows)`, whose figures stand instead of the generic ones;
- `answer(tables)`: the experiment's question answered in one sentence, from its tables by name,
  where `## Answer` of its `about.md` cannot say it by quoting cells;
- `SHOWN`: which table and figure the page shows. All others are folded;
- `evidence(results)`: claim id -> our number for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from repro.report.table import Table

HOME = Path(__file__).resolve().parents[2] / "experiments"
_QUOTED = re.compile(r"\{(\w+)((?: \S+=\S+)*): (.+?)( \[low, high\])?\}")
MOST_COLUMNS = 7  # of the table that the page shows of an experiment


@dataclass(frozen=True)
class Shown:
    """What the page shows of an experiment before anything is unfolded.

    Attributes:
        head: at most seven of its columns, as Markdown heads them, `K | M | step (ms)`; empty
            for all.
        lines: column -> text that every shown line has there; empty for all lines.
    """

    table: str  # its name
    head: str = ""
    figure: str = ""  # its name; empty for the first figure
    lines: Mapping[str, tuple[str, ...]] | None = None

    @property
    def columns(self) -> list[str]:
        return self.head.split(" | ") if self.head else []


# Of an experiment that has no report.
POINTS = Shown("", "model | K | M | step (ms) | speedup over K=1 | idle/total | peak MiB")


def report_of(experiment: str) -> ModuleType | None:
    # Names come from recorded results, so only one of these is ever imported.
    known = {path.parent.name for path in HOME.glob("*/report.py")}
    return import_module(f"experiments.{experiment}.report") if experiment in known else None


def shown_of(experiment: str) -> Shown:
    report = report_of(experiment)
    return getattr(report, "SHOWN", Shown("")) if report else POINTS


def answer_of(experiment: str, tables: Mapping[str, Table]) -> str:
    """The answer to an experiment's question; empty if its report has none.

    An answer quotes cells. Where one of them has no number yet, there is no answer.
    """
    report = report_of(experiment)
    answer, about = getattr(report, "answer", None), getattr(report, "ABOUT", None)
    try:
        if answer is not None:
            return answer(tables)
        return _with_cells(about.words["Answer"].note, tables) if about else ""
    except LookupError:
        return ""


def _with_cells(text: str, tables: Mapping[str, Table]) -> str:
    """A text with the cells that it quotes, as docs/numbers.toml names them.

    `{bubble_at_4k K=2: simulated early}` is a number; with ` [low, high]` at its end, the cell.
    """

    def cell(quoted: re.Match[str]) -> str:
        table, line, column, whole = quoted.groups()
        wanted = dict(pair.replace("_", " ").split("=", 1) for pair in line.split())
        found = tables[table].text(column, **wanted)
        return found if whole else found.split()[0]

    return _QUOTED.sub(cell, text)
