"""The report of an experiment: `experiments/<name>/report.py`, found by the experiment's name.

Such a file may have

- `tables(results)`, whose tables stand before the generic ones;
- `figures(results, rows)`, whose figures stand instead of the generic ones;
- `answer(tables)`: the experiment's question answered in one sentence, from its tables by name;
- `SHOWN`: which table and figure the page shows. All others are folded.

`experiments/<name>/claims.py` has `evidence(results)`: claim id -> our number for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from repro.report.table import Table

HOME = Path(__file__).resolve().parents[2] / "experiments"
MOST_COLUMNS = 7  # of the table that the page shows of an experiment


@dataclass(frozen=True)
class Shown:
    """What the page shows of an experiment before anything is unfolded.

    Attributes:
        table: its name.
        columns: at most seven of its columns, as Markdown heads them; empty for all.
        figure: its name; empty for the first figure.
        lines: column -> text that every shown line has there; empty for all lines.
    """

    table: str
    columns: tuple[str, ...] = ()
    figure: str = ""
    lines: Mapping[str, tuple[str, ...]] | None = None


def report_of(experiment: str) -> ModuleType | None:
    """The report of an experiment that comes with the project and has one."""
    return _module_of(experiment, "report")


def claims_of(experiment: str) -> ModuleType | None:
    """The module with `evidence(results)`."""
    report = report_of(experiment)
    return report if hasattr(report, "evidence") else _module_of(experiment, "claims")


def shown_of(experiment: str) -> Shown | None:
    return getattr(report_of(experiment), "SHOWN", None)


def answer_of(experiment: str, tables: Mapping[str, Table]) -> str:
    """The answer to an experiment's question; empty if its report has none.

    An answer quotes cells. Where one of them has no number yet, there is no answer.
    """
    answer = getattr(report_of(experiment), "answer", None)
    if answer is None:
        return ""
    try:
        return answer(tables)
    except LookupError:
        return ""


def _module_of(experiment: str, file: str) -> ModuleType | None:
    # Names come from recorded results, so only one of these is ever imported.
    known = {path.parent.name for path in HOME.glob(f"*/{file}.py")}
    return import_module(f"experiments.{experiment}.{file}") if experiment in known else None
