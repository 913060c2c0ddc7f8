"""The sections of the page: one for each experiment, its tables and figures unfolded."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from repro.harness.catalog import in_order
from repro.harness.results import Results, Run, on_a_busy_machine
from repro.harness.spec import ON_CPU
from repro.report.claim import Claim
from repro.report.compare import of_exhibits
from repro.report.declared import words_of
from repro.report.figures import Drawn
from repro.report.style import model_name
from repro.report.table import Table
from repro.report.tables import origins
from repro.report.verdicts import counted


def sections_of(
    results: Results,
    tables: Sequence[Table],
    drawn: Sequence[Drawn],
    traces: Mapping[str, Path],
    claims: Mapping[str, Sequence[Claim]],
) -> list[dict[str, Any]]:
    shown = of_exhibits(results).by_experiment
    sections = []
    for name in in_order(results.by_experiment):
        if name not in results.by_experiment:
            continue
        listing, words = results.listings[name], words_of(results, name)
        runs = shown.get(name) or results.by_experiment[name]
        measured = [run for run in runs if run.done and run.fidelity == "measured"]
        title, is_exhibit = words.title or name, listing.paper.startswith(("Table", "Figure"))
        places = [("arXiv v5", listing.paper), ("NeurIPS 2019", listing.neurips)]
        in_paper = getattr(words, "words", {}).get("In the paper")
        sections.append(
            {
                "name": name,
                "short": listing.paper if is_exhibit else title,
                # Of what is no table or figure of v5, the title alone.
                "title": f"{listing.paper}: {title}" if is_exhibit else title,
                "question": words.question,
                "measured": bool(measured),
                "on_gpu": any(run.scale not in ON_CPU for run in measured),
                "notes": [*filter(None, (on_a_busy_machine(runs), _in_turn(runs)))],
                "verdicts": counted(claims.get(name, ())),
                "tables": [table for table in tables if table.experiment == name],
                "figures": [figure for figure in drawn if figure.experiment == name],
                "numbering": ", ".join(f"{version} {place}" for version, place in places if place),
                "in_paper": in_paper.note if in_paper else "",
                "deviations": words.deviations,
                "missing": _missing(runs),
                "commands": _commands(results, name),
                "origins": origins(runs),
                "trace": traces[name].name if name in traces else "",
            }
        )
    return sections


def with_code(text: str) -> Markup:
    """A text for the page; words between backticks are code."""
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


def _in_turn(runs: list[Run]) -> str:
    in_turn = sum(run.in_turn for run in runs if run.rounds)
    text = f"Measured in turn, not step against step: {in_turn} of {len(runs)} runs."
    return text if in_turn else ""


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
