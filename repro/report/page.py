"""One self-contained page from recorded results, with its tables and figures as files beside it.

The first screen answers the paper's six questions. A section for each experiment follows,
then what the words mean, every claim, and the machines. A page of results that are not compared
with the paper begins with the experiments. The same results give the same bytes.
"""

from collections import Counter
from pathlib import Path
from typing import Any

from markupsafe import Markup

from repro.harness.results import Results, load_recorded
from repro.io.untrusted import refuse_linked_files
from repro.report import figures, texts, verdicts
from repro.report.compare import of_exhibits, of_paper
from repro.report.first_screen import first_screen
from repro.report.player import player, rendered
from repro.report.sections import as_text, sections_of, with_code
from repro.report.table import Table, csv_text
from repro.report.tables import all_tables, origins, rounds, runs

STYLES = ("page.css", "first_screen.css")


def write(results_dir: Path, plots_dir: Path) -> Path:
    """Write tables (csv, md), figures (png, svg) and report.html; return the page's path.

    Raises:
        ValueError: if nothing is recorded in `results_dir`, or there is a link in either folder.
    """
    return write_loaded(load_recorded(results_dir), plots_dir)


def write_loaded(results: Results, plots_dir: Path) -> Path:
    refuse_linked_files(plots_dir)
    tables = write_tables(results, plots_dir)
    drawn = figures.draw_all(results, plots_dir)
    traces = figures.traces(results, plots_dir)
    claims = verdicts.claims_of(results)
    compared = bool(verdicts.all_lines(results))
    papers = of_paper(results)
    sections = sections_of(results, tables, drawn, traces, claims if compared else {})
    # Experiments that have claims and no results.
    absent = [name for name in claims if name not in results.by_experiment]
    own = not compared and len(sections) <= 2  # a few experiments are named
    folder = Path(__file__).parent
    page = rendered(
        folder / "template.html.j2",
        code=with_code,
        css=Markup("\n".join((folder / name).read_text(encoding="utf-8") for name in STYLES)),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        title=" and ".join(each["title"] for each in sections) if own else "GPipe, reproduced",
        first=first_screen(results, claims, tables) if compared else None,
        verdict_words=texts.VERDICTS,
        player=player(results),
        banner=_banner(results),
        tiny=all(run.scale == "smoke" for run in results.runs),
        sections=sections,
        absent=[f".venv/bin/repro run {name}" for name in absent if compared],
        fidelities={n: t for n, t in texts.FIDELITIES.items() if compared or n != "quoted"},
        metrics={n: t for n, t in texts.METRICS.items() if papers or n != texts.AS_TABLE2},
        deviations=texts.DEVIATIONS if papers else (),
        counts=sorted(Counter(run.status.partition("(")[0] for run in results.runs).items()),
        claims=next((table for table in tables if table.name == verdicts.NAME), None),
        origins=origins(results.runs),
        environments=_environments(results),
    )
    path = plots_dir / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def write_tables(results: Results, plots_dir: Path) -> list[Table]:
    """Write every table of these results, runs.csv and rounds.csv."""
    tables = all_tables(results)
    # Verdicts of an earlier report must not stay where this one has none.
    for kind in ("csv", "md"):
        (plots_dir / f"{verdicts.NAME}.{kind}").unlink(missing_ok=True)
    for table in tables:
        table.write(plots_dir)
    for name, frame in (("runs", runs(results)), ("rounds", rounds(results))):
        text = csv_text(frame.to_dict("list"))
        (plots_dir / f"{name}.csv").write_text(text, encoding="utf-8")
    return tables


def _banner(results: Results) -> list[str]:
    """What the scales of these results are for, and which runs no exhibit shows."""
    every, shown = results.runs, of_exhibits(results)
    scales = {run.scale for run in every}
    sentences = [text for scale, text in texts.SCALES.items() if scale in scales]
    if not of_paper(results):
        # All but the first sentence about a scale is about the paper.
        sentences = [text.partition(". ")[0].removesuffix(".") + "." for text in sentences]
        names = ", ".join(dict.fromkeys(run.experiment for run in every))
        sentences.append(f"The paper has no numbers for {names}, so none are shown.")
    hidden = {run.experiment for run in every if run.scale == "smoke"} & {*shown.by_experiment}
    if hidden:
        sentences.append(
            f"Smoke runs of {', '.join(sorted(hidden))} are in the list of all runs, but not in "
            "tables and figures."
        )
    return sentences


def _environments(results: Results) -> list[dict[str, Any]]:
    distinct: dict[str, dict[str, Any]] = {}
    for journal in results.journals:
        for run in sorted(journal.environments):
            lines = {"machine": journal.place.machine}
            lines |= {key: as_text(value) for key, value in journal.environments[run].items()}
            environment = distinct.setdefault(str(lines), {"lines": lines, "runs": 0})
            environment["runs"] += 1
    return list(distinct.values())
