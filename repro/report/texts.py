"""The report's fixed words, from `words.md`: what words mean, titles and notes of its own tables.

A list item there is a word, a colon and its meaning; the banner of the page shows the scales.
"""

import re
from pathlib import Path

from repro.harness.about import Words

_SECTIONS = re.split(r"^## ", Path(__file__).with_name("words.md").read_text("utf-8"), flags=re.M)


def _meanings(section: str) -> dict[str, str]:
    items = [" ".join(item.split()) for item in re.split(r"^- ", section, flags=re.M)[1:]]
    return {word: meaning for word, _, meaning in (item.partition(": ") for item in items)}


FIDELITIES, VERDICTS, METRICS, SCALES, SENTENCES, *_TITLED = map(_meanings, _SECTIONS[1:])
# Name -> title and note of a table, of a figure, or of the player's schedule.
TABLES, _FIGURES, SCHEDULES = (
    {name: (text.partition(". ")[0], text.partition(". ")[2]) for name, text in words.items()}
    for words in _TITLED
)
FIGURES = {name: Words(*words) for name, words in _FIGURES.items()}
AS_TABLE2 = "throughput over K=2, M=1"  # a metric that only the paper's experiments need
DEVIATIONS = [
    "Pipelines of PyTorch processes instead of Lingvo on TPUs; one process a stage.",
    "Scaled-down runs can show a trend, not a reproduction.",
    "On a CPU trainings keep activations instead of recomputing them: the same bits in less time.",
    "In trainings, batch norm's running statistics move by 0.1 a step. The authors' 0.0003 needs "
    "thousands of steps.",
]
"""Of every experiment of the paper."""
