"""One self-contained page from recorded results, with its tables and figures as files beside it.

For each experiment in this order: question, command, ours against the paper, figures, what the
metrics mean, deviations, what was skipped and why; then the environment. The same results give the
same bytes.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run, load, load_recorded
from repro.report import figures, gantt, texts, verdicts
from repro.report.compare import beside_paper, of_paper, rows_of, without_tiny
from repro.report.declared import is_folded
from repro.report.figures import Drawn
from repro.report.provenance import origins
from repro.report.style import model_name
from repro.report.table import Table, csv_text
from repro.report.tables import all_tables, rounds


@dataclass(frozen=True)
class Section:
    """One experiment on the page.

    Attributes:
        name: of the experiment.
        title: of the experiment.
        question: that it answers.
        numbering: `arXiv v5 Table 2, NeurIPS 2019 Table 2`.
        of_paper: whether the paper has a number for it, so that there is something to deviate from.
        commands: what a user types to measure it.
        tables: title, note and finished HTML of each.
        figures: caption and finished SVG of each.
        trace: file name of its timelines; empty without any.
        deviations: from the paper.
        missing: runs without a result, and why.
    """

    name: str
    title: str
    question: str
    numbering: str
    of_paper: bool
    commands: list[str]
    tables: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    trace: str
    deviations: list[str]
    missing: list[str]


def write(results_dir: Path, plots_dir: Path) -> Path:
    """Write tables (csv, md, tex), figures (png, svg) and report.html; return the page's path.

    Raises:
        ValueError: if nothing is recorded in `results_dir`.
    """
    return write_loaded(load_recorded(results_dir), plots_dir)


def write_loaded(results: Results, plots_dir: Path) -> Path:
    """Write tables, figures and page of results that are loaded; return the page's path."""
    tables = write_tables(results, plots_dir)
    drawn = figures.draw_all(results, plots_dir)
    traces = figures.traces(results, plots_dir)
    papers = of_paper(results)
    quoting = any(beside_paper(results, name) for name in papers)
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("template.html.j2").render(
        sections=_sections(results, tables, drawn, traces),
        rest=[_shown(table) for table in tables if not table.experiment],
        banner=_banner(results),
        quoting=quoting,
        fidelities={
            word: text for word, text in texts.FIDELITIES.items() if quoting or word != "quoted"
        },
        metrics={
            name: text for name, text in texts.METRICS.items() if papers or name != texts.AS_TABLE2
        },
        environments=_environments(results),
        counts=_counts(rows_of(results)),
        origins=origins(rows_of(results)),
    )
    path = plots_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def write_tables(results: Results, plots_dir: Path) -> list[Table]:
    """Write every table of these results, and rounds.csv; returns the tables."""
    tables = all_tables(results)
    # The command prints this file, so the one of an earlier report must not stay.
    (plots_dir / verdicts.WRITTEN).unlink(missing_ok=True)
    for table in tables:
        table.write(plots_dir)
    (plots_dir / "rounds.csv").write_text(csv_text(rounds(results)), encoding="utf-8")
    return tables


def _banner(results: Results) -> list[str]:
    """What the scales of these results are for, and which runs are not compared with the paper."""
    runs, compared = rows_of(results), rows_of(without_tiny(results))
    scales = {run.scale for run in runs}
    sentences = [text for scale, text in texts.SCALES.items() if scale in scales]
    if not of_paper(results):
        # All but the first sentence about a scale is about the paper.
        sentences = [text.partition(". ")[0].removesuffix(".") + "." for text in sentences]
        names = ", ".join(dict.fromkeys(run.experiment for run in runs))
        sentences.append(f"The paper has no numbers for {names}, so none stand beside these.")
    shown = {(run.experiment, run.scale) for run in compared}
    hidden = {run.experiment for run in runs if (run.experiment, run.scale) not in shown}
    if hidden:
        sentences.append(
            f"Smoke runs of {', '.join(sorted(hidden))} are in the list of all runs, but not in "
            "the tables and figures that compare with the paper."
        )
    return sentences


def animate(results_dir: Path, plots_dir: Path) -> Path:
    """Draw the README's picture, pipeline.gif: one measured step of Table 2's AmoebaNet-D.

    Raises:
        ValueError: if no such timeline is recorded.
    """
    timeline, title = pictured_step(load(results_dir))
    return gantt.gantt_gif(timeline, plots_dir / "pipeline.gif", title)


def pictured_step(results: Results) -> tuple[Timeline, str]:
    """The step of the README's picture and its title: of M=4, the one with the most stages.

    Only a measured step counts. README's caption says "measured", and Table 2 has simulated
    steps of more stages.

    Raises:
        ValueError: if no such timeline is recorded.
    """
    wanted = {"experiment": "table2", "fidelity": "measured", "status": "done"}
    runs = rows_of(results, model="amoebanet-d", M=4, **wanted)
    for run in sorted(runs, key=lambda run: -run.K):
        timeline = results.timeline(run) if run.K > 1 else None
        if timeline is not None:
            title = (
                f"One {run.fidelity} training step of {model_name(run.model)} "
                f"at {run.scale} scale: K={run.K} stages, M={run.M} micro-batches"
            )
            return timeline, title
    raise ValueError(
        "no measured step of amoebanet-d with K > 1, M = 4 is recorded for the animation; "
        "measure one: repro run table2 --only K=2,M=4"
    )


def _sections(
    results: Results, tables: list[Table], drawn: list[Drawn], traces: dict[str, Path]
) -> list[Section]:
    """A section for each experiment with results, the paper's tables first."""
    names = dict.fromkeys(run.experiment for run in rows_of(results))
    # The other experiments keep their order.
    ordered = sorted(names, key=lambda name: name if name.startswith("table") else "~")
    return [_section(results, name, tables, drawn, traces.get(name)) for name in ordered]


def _section(
    results: Results, name: str, tables: list[Table], drawn: list[Drawn], trace: Path | None
) -> Section:
    about = results.listings[name]
    runs = rows_of(results, experiment=name)
    general = texts.DEVIATIONS if name in of_paper(results) else []
    places = [("arXiv v5", about.paper), ("NeurIPS 2019", about.neurips)]
    return Section(
        name=name,
        title=about.title or name,
        question=about.question,
        numbering=", ".join(f"{version} {place}" for version, place in places if place),
        of_paper=name in of_paper(results),
        commands=_commands(results, name),
        tables=[_shown(table) for table in tables if table.experiment == name],
        figures=[_picture(figure) for figure in drawn if figure.experiment == name],
        trace=trace.name if trace else "",
        deviations=[*about.deviations, *general, *_sizes(runs)],
        missing=_missing(runs),
    )


def _shown(table: Table) -> dict[str, Any]:
    """What the template needs of a table."""
    general = not table.experiment
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "html": Markup(table.html()),
        "folded": table.folded or general or is_folded(table.experiment, table.name),
    }


def _picture(drawn: Drawn) -> dict[str, Any]:
    """What the template needs of a figure."""
    name = drawn.stem.name
    text = drawn.stem.with_name(f"{name}.svg").read_text(encoding="utf-8")
    svg = text[text.index("<svg") :]
    # Ids are made unique on the page.
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return {"name": name, "caption": drawn.caption, "svg": Markup(svg), "folded": drawn.folded}


def _commands(results: Results, name: str) -> list[str]:
    """What a user types to measure an experiment, as recorded, each at its own scale."""
    commands: list[str] = []
    for folder in results.folders:
        about = folder.about()
        if folder.path.name == name and about is not None:
            scale = folder.path.parts[-2]
            typed = about.commands or [name]
            commands += [f".venv/bin/repro run {command} --scale {scale}" for command in typed]
    return list(dict.fromkeys(commands))


def _sizes(runs: list[Run]) -> list[str]:
    """The sizes of the models that were run, and the devices."""
    sentences = []
    for model in dict.fromkeys(run.model for run in runs):
        specs = [run.spec for run in runs if run.model == model]
        sizes = dict.fromkeys(
            f"{_as_text(spec.model_args) or 'its defaults'}; N={spec.N}" for spec in specs
        )
        sentences.append(f"{model_name(model)} here: {' / '.join(sizes)}.")
    real = [run for run in runs if run.fidelity != "simulated"]
    devices = dict.fromkeys(run.device for run in real if run.device)
    if devices:
        sentences.append(f"Devices here: {', '.join(devices)}.")
    return sentences


def _missing(runs: list[Run]) -> list[str]:
    """Runs without a result, one line for each model and reason."""
    points: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if not run.done:
            reason = (model_name(run.model), run.status)
            points.setdefault(reason, []).append(f"K={run.K} M={run.M}")
    return [
        f"{model}: {status}: {', '.join(dict.fromkeys(names))}"
        for (model, status), names in points.items()
    ]


def _environments(results: Results) -> list[dict[str, Any]]:
    """The distinct environments of the runs, with how many runs each has."""
    distinct: dict[str, dict[str, Any]] = {}
    for folder in results.folders:
        for path in sorted(folder.path.glob("*/env.json")):
            env = folder.env(path.parent.name)
            if env:
                lines = {"machine": folder.path.parts[-3]}
                lines |= {key: _as_text(value) for key, value in env.items()}
                environment = distinct.setdefault(str(lines), {"lines": lines, "runs": 0})
                environment["runs"] += 1
    return list(distinct.values())


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _counts(runs: list[Run]) -> list[tuple[str, int]]:
    """How many runs there are of each status, reasons left out."""
    return sorted(Counter(run.status.partition("(")[0] for run in runs).items())
