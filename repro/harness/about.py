"""`about.md` of an experiment: its title, question and deviations, and the words of its report.

The first heading is the title and the paragraph below it the question. `## Deviations` has a list.
Each other heading, such as `## table5_gains: What a larger batch gains`, names tables or a figure,
with its title and, below it, its note or caption. Words in braces are filled in by the report,
`{no_interval}` always.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from repro.harness.statistics import MIN_BLOCKS

NO_INTERVAL = f"no interval below {MIN_BLOCKS} blocks"
_HEADING = re.compile(r"^#+ ", re.MULTILINE)
_DEVIATIONS = "Deviations"


@dataclass(frozen=True)
class Words:
    """Title and note of a table, or of a figure, whose note is its caption."""

    title: str
    note: str

    def filled(self, **values: object) -> "Words":
        given = {"no_interval": NO_INTERVAL} | values
        return Words(self.title.format(**given), self.note.format(**given))


@dataclass(frozen=True)
class About:
    experiment: str  # its folder
    title: str
    question: str
    deviations: tuple[str, ...]
    words: dict[str, Words]  # by the name of the table or figure

    @property
    def of_experiment(self) -> dict[str, Any]:
        """The fields of an `Experiment` that the file has."""
        fields = {"name": self.experiment, "title": self.title, "question": self.question}
        return fields | {"deviations": self.deviations}


@cache
def read_about(experiment_file: str) -> About:
    path = Path(experiment_file).with_name("about.md")
    _, first, *sections = _HEADING.split(path.read_text(encoding="utf-8"))
    title, question = _parts(first)
    deviations: tuple[str, ...] = ()
    words = {}
    for heading, body in map(_parts, sections):
        if heading == _DEVIATIONS:
            deviations = tuple(_one_line(item) for item in re.split(r"^- ", body, flags=re.M)[1:])
        else:
            name, _, title_of_table = heading.partition(": ")
            words |= dict.fromkeys(name.split(", "), Words(title_of_table, _one_line(body)))
    return About(path.parent.name, title, _one_line(question), deviations, words)


def _parts(section: str) -> tuple[str, str]:
    heading, _, body = section.partition("\n")
    return heading.strip(), body


def _one_line(text: str) -> str:
    return " ".join(text.split())
