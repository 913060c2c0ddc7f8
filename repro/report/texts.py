"""The report's fixed words, from `words.md`: what words mean, titles and notes of its own tables.

A list item there is a word, a colon and its meaning.
"""

import re
from pathlib import Path

from repro.harness.about import Words

_SECTIONS = re.split(r"^## ", Path(__file__).with_name("words.md").read_text("utf-8"), flags=re.M)


def _meanings(section: str) -> dict[str, str]:
    items = [" ".join(item.split()) for item in re.split(r"^- ", section, flags=re.M)[1:]]
    return {word: meaning for word, _, meaning in (item.partition(": ") for item in items)}


FIDELITIES, VERDICTS, METRICS, SCALES, DEVIATIONS, SENTENCES, *_TITLED = map(
    _meanings, _SECTIONS[1:]
)
# Name -> title and note of a table, of a figure, or of the player's schedule.
TABLES, _FIGURES, SCHEDULES = (
    {name: (text.partition(". ")[0], text.partition(". ")[2]) for name, text in words.items()}
    for words in _TITLED
)
FIGURES = {name: Words(*words) for name, words in _FIGURES.items()}
