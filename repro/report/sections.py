"""The sections of the page: one for each experiment, with its table, its figure and what is folded.

A section shows a question, the answer, one table of at most seven columns and one figure. All else
is folded, and tables that are too large for a page are links to their csv files.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from repro.harness.results import Results, Run
from repro.harness.schema import PlanEvent
from repro.report import texts
from repro.report.compare import of_paper
from repro.report.declared import Shown, answer_of, shown_of
from repro.report.figures import Drawn
from repro.report.style import model_name
from repro.report.table import EMPTY, Table
from repro.report.tables import origins
from repro.report.verdicts import Exhibit, summed

FOLDED_COLUMNS, FOLDED_LINES = 14, 100  # at most, of a folded table; larger ones are links
MOST_SIZES = 6  # of one model that a section lists


def sections_of(
    results: Results,
    tables: Sequence[Table],
    drawn: Sequence[Drawn],
    traces: Mapping[str, Path],
    rows: Sequence[Exhibit],
) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(run.experiment for run in results.runs))
    names.sort(key=lambda name: _order(results.listings[name], name))
    sections = []
    for name in names:
        about, runs = results.listings[name], results.by_experiment[name]
        shown = shown_of(name)
        verdicts = [row for row in rows if row.experiment == name]
        pictures = [figure for figure in drawn if figure.experiment == name]
        pictures.sort(key=lambda figure: figure.stem.name != shown.figure)
        general = texts.DEVIATIONS if name in of_paper(results) else []
        places = [("arXiv v5", about.paper), ("NeurIPS 2019", about.neurips)]
        section = {
            "name": name,
            "short": _short(about.title or name, verdicts),
            "title": _title(about, name),
            "question": about.question,
            "answer": answer_of(name, {table.name: table for table in tables}),
            "verdicts": verdicts,
            "counts": summed(verdicts),
            "figure": pictures[0] if pictures else None,
            "more_figures": pictures[1:],
            "numbering": ", ".join(f"{version} {place}" for version, place in places if place),
            "of_paper": name in of_paper(results),
            "deviations": [*about.deviations, *general, *_sizes(runs)],
            "missing": _missing(runs),
            "commands": _commands(results, name),
            "origins": origins(runs),
            "trace": traces[name].name if name in traces else "",
        }
        sections.append(section | _tables(shown, [t for t in tables if t.experiment == name]))
    return sections


def _tables(shown: Shown, tables: Sequence[Table]) -> dict[str, Any]:
    """The shown table, those that are folded, and those that are too large for a page."""
    main = _main_table(shown, tables)
    folded, linked = [], []
    for table in tables:
        if main is not None and table.name == main.name:
            if main.shown.shape == table.shown.shape:
                continue  # the whole of it is shown
            table = replace(table, title=f"{table.title}: all columns and lines")
        too_large = len(table.names) > FOLDED_COLUMNS or len(table.shown) > FOLDED_LINES
        (linked if too_large else folded).append(table)
    return {
        "table": main,
        "more_tables": folded,
        "linked": [table.name for table in linked],
        "metrics": _metrics([main, *folded] if main else folded),
    }


def _order(about: PlanEvent, name: str) -> tuple[int, str, str]:
    """The paper's tables, what stands in its text, its figures, and what goes beyond it."""
    in_text = 1 if about.paper or about.neurips else 3
    kind, _, _ = about.paper.partition(" ")
    return {"Table": 0, "Figure": 2}.get(kind, in_text), about.paper, name


def _title(about: PlanEvent, name: str) -> str:
    """`Table 2: Training throughput ...`; of what is no table or figure of v5, the title alone."""
    title = about.title or name
    return f"{about.paper}: {title}" if about.paper.startswith(("Table", "Figure")) else title


def _short(title: str, rows: Sequence[Exhibit]) -> str:
    """`Table 2` of several exhibits of that table; `Step breakdown`; the title without exhibits."""
    if not rows:
        return title
    places = {row.name.partition(", ")[0] for row in rows}
    return places.pop() if len(rows) > 1 and len(places) == 1 else rows[0].name


def _main_table(shown: Shown, tables: Sequence[Table]) -> Table | None:
    """The table to show, without lines that have nothing but their name in the shown columns."""
    if not tables:
        return None
    table = next((table for table in tables if table.name == shown.table), tables[0])
    lines = table.shown
    for column, wanted in (shown.lines or {}).items():
        kept = lines[lines[column].isin(wanted)]
        lines = kept if len(kept) else lines
    if shown.columns and shown.table in ("", table.name):
        lines = lines[[name for name in table.names if name in shown.columns]]
        lines = lines[(lines.iloc[:, 2:] != EMPTY).any(axis=1)]
    return replace(table, shown=lines)


def with_code(text: str) -> Markup:
    """A text for the page, where what stands between backticks is code."""
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(text))))


def _metrics(tables: Sequence[Table]) -> dict[str, str]:
    heads = " ".join(name for table in tables for name in table.names)
    return {
        name: text
        for name, text in texts.METRICS.items()
        if name.partition(" ")[0] in heads and name != texts.AS_TABLE2
    }


def _commands(results: Results, name: str) -> list[str]:
    """What a user types to measure an experiment, as recorded, each at its own scale."""
    commands = [
        f".venv/bin/repro run {command} --scale {journal.place.scale}"
        for journal in results.journals
        if journal.place.experiment == name and journal.about is not None
        for command in journal.about.commands or [name]
    ]
    return list(dict.fromkeys(commands))


def _sizes(runs: list[Run]) -> list[str]:
    sentences = []
    for model in dict.fromkeys(run.model for run in runs):
        specs = [run.spec for run in runs if run.model == model]
        sizes = dict.fromkeys(
            f"{as_text(spec.model_args) or 'its defaults'}; N={spec.N}" for spec in specs
        )
        listed = [*sizes][:MOST_SIZES]
        if more := len(sizes) - len(listed):
            listed.append(f"and {more} more, all in runs.csv")
        sentences.append(f"{model_name(model)} here: {' / '.join(listed)}.")
    real = [run for run in runs if run.fidelity != "simulated"]
    devices = dict.fromkeys(run.device for run in real if run.device)
    if devices:
        sentences.append(f"Devices here: {', '.join(devices)}.")
    return sentences


def _missing(runs: list[Run]) -> list[str]:
    points: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if not run.done:
            reason = (model_name(run.model), run.status)
            points.setdefault(reason, []).append(f"K={run.K} M={run.M}")
    return [
        f"{model}: {status}: {', '.join(dict.fromkeys(names))}"
        for (model, status), names in points.items()
    ]


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
