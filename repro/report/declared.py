"""The report of an experiment: `experiments/<name>/report.py`, found by the experiment's name.

Such a file may have

- `tables(results)`, whose tables stand before the generic ones;
- `figures(results)`: (name, figure, what fills the braces of its caption) of each;
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

from repro.harness.about import About
from repro.harness.results import Results
from repro.harness.schema import PlanEvent
from repro.report.table import EMPTY, Table

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


OVER_PLAIN = "over plain training"
# Of an experiment that has no report.
POINTS = Shown(
    "",
    "model | method | K | D | M | N | recompute | throughput | "
    f"{OVER_PLAIN} | peak MiB | differs in | machine",
)


def report_of(experiment: str) -> ModuleType | None:
    # Names come from recorded results, so only one of these is ever imported.
    known = {path.parent.name for path in HOME.glob("*/report.py")}
    return import_module(f"experiments.{experiment}.report") if experiment in known else None


def words_of(results: Results, experiment: str) -> About | PlanEvent:
    """Title, question and deviations of an experiment: its about.md's, else the recorded ones."""
    return getattr(report_of(experiment), "ABOUT", results.listings[experiment])


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
        if report is None:
            names = [name for name in tables if name.startswith(f"{experiment}_points")]
            return " ".join(_fastest(tables[name]) for name in names)
        if answer is not None:
            return answer(tables)
        return with_cells(about.words["Answer"].note, tables) if about else ""
    except LookupError:
        return ""


def _fastest(points: Table) -> str:
    """The fastest point of each model, over plain training, and its peak."""
    sentences = []
    throughput = points.data["throughput"].dropna().astype(float)
    for model, of_model in throughput.groupby(points.shown["model"], sort=False):
        best = points.shown.loc[of_model.idxmax()]
        over = best[OVER_PLAIN]
        times = f" ({OVER_PLAIN}: {over})" if over != EMPTY else ""
        unclear = " The interval holds 1, so no gain is shown." if over.endswith("~") else ""
        sentences.append(
            f"Fastest for {model}: {best['method']}, K={best['K']}, M={best['M']}, recompute "
            f"{best['recompute']}: {best['throughput']}, {best['fidelity']}{times}, with a peak of "
            f"{best['peak MiB']} MiB.{unclear}"
        )
    return " ".join(sentences)


def with_cells(text: str, tables: Mapping[str, Table]) -> str:
    """A text with the cells that it quotes, as docs/numbers.toml names them.

    `{bubble_at_4k K=2: simulated early}` is a number; with ` [low, high]` at its end, the cell.
    `{table1_check: counted over measured}` names no line: the least and the greatest of the column.

    Raises:
        LookupError: if a cell has no number yet.
    """

    def cell(quoted: re.Match[str]) -> str:
        table, line, column, whole = quoted.groups()
        if not line:
            numbers = tables[table].numbers(column)
            return f"{numbers[0]} to {numbers[-1]}"
        wanted = dict(pair.replace("_", " ").split("=", 1) for pair in line.split())
        found = tables[table].text(column, **wanted)
        return found if whole else found.split()[0]

    return _QUOTED.sub(cell, text)
