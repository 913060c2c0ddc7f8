"""One self-contained page from recorded results: report.html, with its tables and figures as files beside it.

For each experiment in this order: question, command, ours against the paper, figures, what the
metrics mean, deviations, what was skipped and why; then the environment.  The same results give the
same bytes.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from repro.gpipe.errors import did_you_mean
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run, load
from repro.report import figures, texts
from repro.report.compare import beside_paper, of_paper, rows_of, without_smoke
from repro.report.declared import report_of
from repro.report.figures import Drawn
from repro.report.style import model_name
from repro.report.table import Table, csv_text
from repro.report.tables import all_tables, rounds


@dataclass(frozen=True)
class Section:
    """One experiment on the page; tables and figures are finished HTML.

    `of_paper` says whether the paper has a number for it, so that there is something to deviate
    from.
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
    """Make tables (csv, md, tex), figures (png, svg) and report.html in `plots_dir`; returns the page's path.

    Raises:
        ValueError: if nothing is recorded in `results_dir`.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    check_folder(results_dir)
    results = load(results_dir)
    if results.rows.empty:
        raise ValueError(
            f"results = '{results_dir}': nothing is recorded there; measure something first, such "
            f"as: repro run table2 --scale smoke --results {results_dir}{_committed(results_dir)}"
        )
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
        commits=_commits(rows_of(results)),
    )
    path = plots_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def write_tables(results: Results, plots_dir: Path) -> list[Table]:
    """Write every table of these results, and rounds.csv; returns the tables."""
    tables = all_tables(results)
    for table in tables:
        table.write(plots_dir)
    (plots_dir / "rounds.csv").write_text(csv_text(rounds(results)), encoding="utf-8")
    return tables


def check_folder(results_dir: Path) -> None:
    """Raise a one-line ValueError where the results folder does not exist."""
    if not results_dir.is_dir():
        beside = results_dir.parent
        known = [path.name for path in beside.iterdir() if path.is_dir()] if beside.is_dir() else []
        raise ValueError(
            f"results = '{results_dir}': there is no such folder; give the one that "
            f"`repro run --results` recorded into{did_you_mean(results_dir.name, known)}"
        )


def _committed(results_dir: Path) -> str:
    """Where the committed results are, if they lie in this folder, which holds no others."""
    reference = results_dir / "reference"
    return f"; the committed results are in --results {reference}" if reference.is_dir() else ""


def _banner(results: Results) -> list[str]:
    """What the scales of these results are for, and what is not held against the paper."""
    rows, kept = rows_of(results), rows_of(without_smoke(results))
    scales = {row.scale for row in rows}
    lines = [text for scale, text in texts.SCALES.items() if scale in scales]
    if not of_paper(results):
        # Of what a scale is for, all but the first sentence is about the paper.
        names = ", ".join(dict.fromkeys(row.experiment for row in rows))
        lines = [line.partition(". ")[0].removesuffix(".") + "." for line in lines]
        lines.append(f"The paper has no numbers for {names}, so none stand beside these.")
    places = {(row.experiment, row.scale) for row in kept}
    hidden = {row.experiment for row in rows if (row.experiment, row.scale) not in places}
    if hidden:
        lines.append(
            f"Smoke runs of {', '.join(sorted(hidden))} are in the list of all runs, but not in "
            "the tables and figures that hold the other runs against the paper."
        )
    return lines


def animate(results_dir: Path, plots_dir: Path) -> Path:
    """The README's picture, pipeline.gif: one measured step of Table 2's AmoebaNet-D.

    Raises:
        ValueError: if no such timeline is recorded.
    """
    from repro.report.gantt import gantt_gif

    timeline, title = pictured_step(load(results_dir))
    return gantt_gif(timeline, plots_dir / "pipeline.gif", title)


def pictured_step(results: Results) -> tuple[Timeline, str]:
    """The step of the README's picture and its title: of M=4, the one with the most stages.

    Only a measured step counts. README's caption says "measured", and Table 2 has simulated
    steps of more stages.

    Raises:
        ValueError: if no such timeline is recorded.
    """
    wanted = {"experiment": "table2", "fidelity": "measured", "status": "done"}
    rows = rows_of(results, model="amoebanet-d", M=4, **wanted)
    for row in sorted(rows, key=lambda row: -row.K):
        timeline = results.timeline(row) if row.K > 1 else None
        if timeline is not None:
            title = (
                f"One {row.fidelity} training step of {model_name(row.model)} "
                f"at {row.scale} scale: K={row.K} stages, M={row.M} micro-batches"
            )
            return timeline, title
    raise ValueError(
        "no measured step of amoebanet-d with K > 1, M = 4 is recorded for the animation; "
        "measure one: repro run table2 --only K=2,M=4"
    )


def _sections(
    results: Results, tables: list[Table], drawn: list[Drawn], traces: dict[str, Path]
) -> list[Section]:
    """One section for every experiment with results, the paper's tables first."""
    names = dict.fromkeys(row.experiment for row in rows_of(results))
    # the others as they were
    ordered = sorted(names, key=lambda name: name if name.startswith("table") else "~")
    sections = [_section(results, name, tables, drawn) for name in ordered]
    return [replace(s, trace=traces[s.name].name) if s.name in traces else s for s in sections]


def _section(results: Results, name: str, tables: list[Table], drawn: list[Drawn]) -> Section:
    about = results.listings[name]
    rows = rows_of(results, experiment=name)
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
        figures=[_picture(one) for one in drawn if one.experiment == name],
        trace="",
        deviations=[*about.deviations, *general, *_sizes(results, rows)],
        missing=_missing(rows),
    )


def _shown(table: Table) -> dict[str, Any]:
    from markupsafe import Markup

    patterns = getattr(report_of(table.experiment), "FOLDED", ())
    folded = (
        table.folded or not table.experiment or any(fnmatch(table.name, one) for one in patterns)
    )
    return {
        "name": table.name,
        "title": table.title,
        "note": table.note,
        "html": Markup(table.html()),
        "folded": folded,
    }


def _picture(drawn: Drawn) -> dict[str, Any]:
    """The figure's SVG for inlining, with ids that are its own on the page."""
    from markupsafe import Markup

    text = drawn.stem.parent.joinpath(f"{drawn.stem.name}.svg").read_text(encoding="utf-8")
    svg = text[text.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawn.stem.name}-", svg)
    return {
        "name": drawn.stem.name,
        "caption": drawn.caption,
        "svg": Markup(svg),
        "folded": drawn.folded,
    }


def _commands(results: Results, name: str) -> list[str]:
    """What a user types to measure this, as recorded, each at its own scale."""
    commands: list[str] = []
    for folder in results.folders:
        about = folder.about()
        if folder.path.name == name and about is not None:
            scale = folder.path.parts[-2]
            typed = about.commands or [name]
            commands += [f".venv/bin/repro run {command} --scale {scale}" for command in typed]
    return list(dict.fromkeys(commands))


def _sizes(results: Results, rows: list[Run]) -> list[str]:
    """What was run here: sizes and devices."""
    found = []
    for model in dict.fromkeys(row.model for row in rows):
        specs = [row.spec for row in rows if row.model == model]
        sizes = dict.fromkeys(
            f"{_words(spec.model_args) or 'its defaults'}; N={spec.N}" for spec in specs
        )
        found.append(f"{model_name(model)} here: {' / '.join(sizes)}.")
    devices = dict.fromkeys(
        row.device for row in rows if row.device and row.fidelity != "simulated"
    )
    if devices:
        found.append(f"Devices here: {', '.join(devices)}.")
    return found


def _missing(rows: list[Run]) -> list[str]:
    """Runs without a result, one line for each model and reason."""
    points: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "done":
            points.setdefault((model_name(row.model), row.status), []).append(
                f"K={row.K} M={row.M}"
            )
    return [
        f"{model}: {status}: {', '.join(dict.fromkeys(where))}"
        for (model, status), where in points.items()
    ]


def _environments(results: Results) -> list[dict[str, Any]]:
    """The distinct environments of the runs, with how many runs each has."""
    found: dict[str, dict[str, Any]] = {}
    for folder in results.folders:
        for path in sorted(folder.path.glob("*/env.json")):
            if env := folder.env(path.parent.name):
                lines = {
                    "machine": folder.path.parts[-3],
                    **{key: _words(value) for key, value in env.items()},
                }
                found.setdefault(str(lines), {"lines": lines, "runs": 0})["runs"] += 1
    return list(found.values())


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items())
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _counts(rows: list[Run]) -> list[tuple[str, int]]:
    """How many runs there are of each status word, reasons left out."""
    return sorted(Counter(row.status.partition("(")[0] for row in rows).items())


def _commits(rows: list[Run]) -> list[str]:
    """The commits whose code measured these runs."""
    return sorted({commit for row in rows for commit in row.commit.split(", ") if commit})
