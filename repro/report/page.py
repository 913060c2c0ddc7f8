"""One self-contained page from recorded results, with its tables and figures as files beside it.

The first screen answers the paper's six questions. A section for each experiment follows,
then what the words mean, every claim, and the machines. A page of results that are not compared
with the paper begins with the experiments. The same results give the same bytes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from markupsafe import Markup

from repro.harness.catalog import in_order
from repro.harness.frame import COLUMNS
from repro.harness.results import Results
from repro.io import files
from repro.io.untrusted import refuse_linked_files
from repro.report import texts, verdicts
from repro.report.claim import Claim
from repro.report.declared import report_of
from repro.report.first_screen import first_screen
from repro.report.player import player, rendered
from repro.report.sections import Section, as_text, section_of, with_code
from repro.report.table import Table, cell, csv_text

STYLES = ("page.css", "first_screen.css")
_PLACE = ("machine", "scale", "experiment")  # by which runs.csv is sorted


def write(results: Results, plots: Path) -> "Page":
    """Write tables (csv, md), figures (svg) and report.html.

    Raises:
        ValueError: if there is a link in the folder.
    """
    page = Page(plots)
    page.write(results)
    return page


class Page:
    """The page in a folder. What has not changed since it was written last is not made again."""

    def __init__(self, plots: Path) -> None:
        self.plots, self.path = plots, plots / "report.html"
        self.claims: dict[str, list[Claim]] = {}  # by experiment; none without a number of ours
        self.sections: dict[str, Section] = {}  # by experiment, as they were made last
        self._keys: dict[str, Any] = {}  # of what they were made

    def write(self, results: Results) -> None:
        """Write everything of these results; a reader meets the page before or after, as a whole.

        Experiments that have no result yet are listed.
        """
        refuse_linked_files(self.plots)
        self.plots.mkdir(parents=True, exist_ok=True)
        every = [self._section(results, name) for name in in_order(results.by_experiment)]
        claims = {each["name"]: each["claims"] for each in every if each["claims"]}
        lines = verdicts.lines_of(chain.from_iterable(claims.values()))
        self.claims = claims if lines else {}
        listed = verdicts.table(lines) if lines else None
        self._write_lists(every, listed)
        files.write(self.path, self._rendered(results, every, listed).encode())

    def _section(self, results: Results, name: str) -> Section:
        reads = {name, *getattr(report_of(name), "READS", ())}
        journals = [each for each in results.journals if each.place.experiment in reads]
        key = [(each.place, each.seal) for each in journals], results.machines
        if key != self._keys.get(name):
            runs = [run for run in results.runs if run.experiment in reads]
            self.sections[name] = section_of(replace(results, runs=runs), name, self.plots)
            for table in self.sections[name].get("tables", ()):
                table.write(self.plots)
            self._keys[name] = key
        return self.sections[name]

    def _write_lists(self, every: Sequence[Section], claims: Table | None) -> None:
        """The verdicts and runs.csv."""
        # Verdicts of an earlier report must not stay where this one has none.
        for kind in ("csv", "md"):
            (self.plots / f"{verdicts.NAME}.{kind}").unlink(missing_ok=True)
        if claims:
            claims.write(self.plots)
        rows = [row for section in every for row in section["runs"]]
        rows.sort(key=lambda row: [row[part] for part in _PLACE])
        listed = csv_text({column: [row[column] for row in rows] for column in COLUMNS})
        (self.plots / "runs.csv").write_text(listed, encoding="utf-8")

    def _rendered(self, results: Results, every: Sequence[Section], claims: Table | None) -> str:
        sections = [section for section in every if section["is_shown"]]
        still = [section for section in every if section["is_open"]]
        absent = [
            section
            for section in every
            if section["is_open"] or (section["name"] in self.claims and not section["is_shown"])
        ]
        own = claims is None and 0 < len(sections) + len(still) <= 2  # a few experiments are named
        titles = [*(each["title"] for each in sections), *(each["name"] for each in still)]
        scales = {run.scale for run in results.runs}
        folder = Path(__file__).parent
        return rendered(
            folder / "template.html.j2",
            code=with_code,
            cell=cell,
            css=Markup("\n".join((folder / name).read_text(encoding="utf-8") for name in STYLES)),
            script=Markup((folder / "page.js").read_text(encoding="utf-8")),
            title=" and ".join(titles) if own else "GPipe, reproduced",
            first=first_screen(results, self.claims) if self.claims else None,
            verdicts={name: verdicts.counted(of) for name, of in self.claims.items()},
            verdict_words=texts.VERDICTS,
            player=player([step for section in sections for step in section["steps"]]),
            banner=[text for scale, text in texts.SCALES.items() if scale in scales],
            tiny=scales <= {"smoke"},
            still=", ".join(section["name"] for section in still),
            sections=sections,
            absent=[command for section in absent for command in section["commands"]],
            fidelities=texts.FIDELITIES,
            metrics=texts.METRICS,
            deviations=texts.DEVIATIONS,
            counts=sorted(Counter(run.status.partition("(")[0] for run in results.runs).items()),
            claims=claims,
            environments=_environments(results),
        )


def _environments(results: Results) -> list[dict[str, Any]]:
    distinct: dict[str, dict[str, Any]] = {}
    for journal in results.journals:
        for run in sorted(journal.environments):
            lines = {"machine": journal.place.machine}
            lines |= {key: as_text(value) for key, value in journal.environments[run].items()}
            environment = distinct.setdefault(str(lines), {"lines": lines, "runs": 0})
            environment["runs"] += 1
    return list(distinct.values())
