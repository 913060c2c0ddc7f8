"""The sections of the page: one for each experiment, with its table, its figure and what is folded.

A section shows a question, the answer, one table of few columns and one figure. All else is folded,
and tables that are too large for a page are links to their csv files.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from repro.harness.results import Results, Run, on_a_busy_machine
from repro.harness.spec import ON_CPU
from repro.report.declared import Shown, answer_of, shown_of, words_of
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
    # In the order of the verdicts, and then what goes beyond the paper.
    last_first = dict.fromkeys(row.experiment for row in reversed(rows))
    order = dict.fromkeys([*reversed(last_first), *results.by_experiment])
    once = repeated(results)
    sections = []
    for name in (name for name in order if name in results.by_experiment):
        listing, words = results.listings[name], words_of(results, name)
        shown, runs = shown_of(name), results.by_experiment[name]
        measured = [run for run in runs if run.done and run.fidelity == "measured"]
        verdicts = [row for row in rows if row.experiment == name]
        pictures = [figure for figure in drawn if figure.experiment == name]
        pictures.sort(key=lambda figure: figure.stem.name != shown.figure)
        title, is_exhibit = words.title or name, listing.paper.startswith(("Table", "Figure"))
        places = [("arXiv v5", listing.paper), ("NeurIPS 2019", listing.neurips)]
        section = {
            "name": name,
            "short": _short(title, verdicts),
            # Of what is no table or figure of v5, the title alone.
            "title": f"{listing.paper}: {title}" if is_exhibit else title,
            "question": words.question,
            "answer": answer_of(name, {table.name: table for table in tables}),
            "measured": bool(measured),
            "on_gpu": any(run.scale not in ON_CPU for run in measured),
            "busy": on_a_busy_machine(runs),
            "verdicts": verdicts,
            "counts": summed(verdicts),
            "figure": pictures[0] if pictures else None,
            "more_figures": pictures[1:],
            "numbering": ", ".join(f"{version} {place}" for version, place in places if place),
            "deviations": [line for line in words.deviations if line not in once],
            "sizes": _sizes(runs),
            "missing": _missing(runs),
            "commands": _commands(results, name),
            "origins": origins(runs),
            "trace": traces[name].name if name in traces else "",
        }
        sections.append(section | _tables(shown, [t for t in tables if t.experiment == name]))
    return sections


def repeated(results: Results) -> list[str]:
    """Deviations that several experiments have: the page shows them once."""
    lists = [words_of(results, name).deviations for name in results.by_experiment]
    counts = Counter(line for lines in lists for line in lines)
    return [line for line, count in counts.items() if count > 1]


def _tables(shown: Shown, tables: Sequence[Table]) -> dict[str, Any]:
    """The shown table, those that are folded, and those that are too large for a page."""
    main = _main_table(shown, tables)
    folded, controls, linked = [], [], []
    for table in tables:
        too_large = len(table.names) > FOLDED_COLUMNS or len(table.shown) > FOLDED_LINES
        if main is None or table.name != main.name:
            at_the_end = controls if table.name.endswith("_controls") else folded
            (linked if too_large else at_the_end).append(table)
    return {"table": main, "more_tables": folded, "controls": controls, "linked": linked}


def _short(title: str, rows: Sequence[Exhibit]) -> str:
    """`Table 2` of several exhibits of that table; `Step breakdown`; the title without exhibits."""
    if not rows:
        return title
    places = {row.name.partition(", ")[0] for row in rows}
    return places.pop() if len(rows) > 1 and len(places) == 1 else rows[-1].name


def _main_table(shown: Shown, tables: Sequence[Table]) -> Table | None:
    """The table to show, without lines that have nothing but their name in the shown columns."""
    if not tables:
        return None
    table = next((table for table in tables if table.name == shown.table), tables[0])
    lines = table.shown
    chosen = shown.lines if table.name == shown.table else None
    for column, wanted in (chosen or {}).items():
        kept = lines[lines[column].isin(wanted)]
        lines = kept if len(kept) else lines
    if shown.columns and shown.table in ("", table.name):
        lines = lines[[name for name in table.names if name in shown.columns]]
        lines = lines[(lines.iloc[:, 2:] != EMPTY).any(axis=1)]
        lines = lines.loc[:, ~lines.isin(["", EMPTY]).all()]
    return replace(table, shown=lines)


def with_code(text: str) -> Markup:
    """A text for the page, where what stands between backticks is code."""
    return Markup(re.sub(r"`(.+?)`", r"<code>\1</code>", str(escape(text))))


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
    return sentences


def _missing(runs: list[Run]) -> list[str]:
    """`Transformer: skipped(needs 4 devices): K=4 M=1`; of trainings each arm with its seeds."""
    points: dict[tuple[str, str], list[str]] = {}
    for run in (run for run in runs if not run.done):
        name, point, training = model_name(run.model), f"K={run.K} M={run.M}", run.spec.training
        if training is not None and training.arm:
            rate = f" to tune the rate {training.recipe['lr']:g}" * training.tuning
            name, point = f"{name}, {training.arm}", f"seed {run.spec.seed}{rate}"
        points.setdefault((name, run.status), []).append(point)
    return [
        f"{name}: {status}: {', '.join(dict.fromkeys(found))}"
        for (name, status), found in points.items()
    ]


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
