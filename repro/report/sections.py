"""The sections of the page: what it has of each experiment."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from repro.harness.results import Results, Run
from repro.report.compare import of_exhibits
from repro.report.declared import words_of
from repro.report.figures import draw, trace
from repro.report.player import measured_steps
from repro.report.style import model_name
from repro.report.tables import runs, tables_of
from repro.report.verdicts import claims_of

Section = dict[str, Any]  # what the template reads of an experiment
_OPEN = {"planned", "running", "interrupted"}  # statuses of what is still to be measured


def section_of(results: Results, name: str, plots: Path) -> Section:
    """What the page has of an experiment; its figures and timelines are written into `plots`.

    `results` has its runs, and those that its report reads. Of an experiment without any result
    there are the claims and how it is measured.
    """
    every = results.by_experiment.get(name, [])
    made: Section = {
        "name": name,
        "claims": claims_of(results, name),
        "commands": _commands(results, name) or [f".venv/bin/repro run {name}"],
        "runs": runs(replace(results, runs=every)).to_dict("records"),
        "is_open": _is_open(every),
        "is_shown": bool(every) and not _is_open(every),
    }
    return made | _shown(results, name, plots) if made["is_shown"] else made


def _shown(results: Results, name: str, plots: Path) -> Section:
    of_exhibit = of_exhibits(results).by_experiment.get(name, [])
    listing, words = results.listings[name], words_of(results, name)
    every = results.by_experiment[name]
    runs = of_exhibit or every
    title, is_exhibit = words.title or name, listing.paper.startswith(("Table", "Figure"))
    in_paper = getattr(words, "words", {}).get("In the paper")
    return {
        "short": listing.paper if is_exhibit else title,
        # Of what is no table or figure of v5, the title alone.
        "title": f"{listing.paper}: {title}" if is_exhibit else title,
        "question": words.question,
        "in_turn": _in_turn(runs),
        "tables": tables_of(results, name),
        "figures": draw(results, name, plots),
        "steps": measured_steps(results, name),
        "in_paper": in_paper.note if in_paper else "",
        "deviations": words.deviations,
        "missing": _missing(runs),
        "trace": trace(results, name, plots),
    }


def _is_open(runs: list[Run]) -> bool:
    """Whether runs are still to be measured, and none has a result or has failed."""
    words = {run.status.partition("(")[0] for run in runs}
    return bool(words & _OPEN) and words <= _OPEN | {"skipped"} and not any(r.rounds for r in runs)


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
    """`Transformer: skipped(needs 4 devices): K=4 M=1`; of trainings each arm."""
    points: dict[str, list[str]] = {}
    for run in (run for run in runs if not run.done):
        arm = run.spec.training.arm if run.spec.training else ""
        of_model = points.setdefault(f"{model_name(run.model)}: {run.status}", [])
        of_model.append(arm or f"K={run.K} M={run.M}")
    return [f"{name}: {', '.join(dict.fromkeys(found))}" for name, found in points.items()]


def as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
