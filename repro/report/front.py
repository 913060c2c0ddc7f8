"""The first screen of the page: a line for each exhibit, with the colours of its verdicts."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from repro.claims.claim import WORDS
from repro.report.style import FIDELITIES
from repro.report.table import EMPTY
from repro.report.verdicts import (
    EXHIBITS,
    Judged,
    VerdictRow,
    counted_claims,
    rows_of_exhibits,
    short_verdict,
)

Counts = list[tuple[str, int]]  # verdict -> claims that have it, the best verdict first
ABSENT = "absent"  # id of the section that lists experiments without results


@dataclass(frozen=True)
class FrontRow(VerdictRow):
    """An exhibit on the page; `target` is the id of the section that a reader is led to."""

    fidelities: list[str]
    short: str
    counts: Counts
    experiment: str
    target: str


def front_rows(claims: Sequence[Judged], sections: Collection[str]) -> list[FrontRow]:
    """A row for each exhibit; `sections` are the experiments that have a section on the page."""
    made = []
    for exhibit, row in zip(EXHIBITS, rows_of_exhibits(claims), strict=True):
        counted = counted_claims(claims, exhibit)
        experiment = next((j.claim.experiment for j in counted if j.claim.experiment), "")
        made.append(
            FrontRow(
                **vars(row),
                fidelities=[] if row.fidelity == EMPTY else row.fidelity.split(", "),
                short=short_verdict(counted),
                counts=counts_of(counted),
                experiment=experiment,
                target=experiment if experiment in sections else ABSENT,
            )
        )
    return made


def counts_of(claims: Sequence[Judged]) -> Counts:
    counter = Counter(judged.verdict.word for judged in claims)
    return [(word, counter[word]) for word in WORDS if word in counter]


def summed(rows: Sequence[FrontRow]) -> Counts:
    counter: Counter[str] = Counter()
    for row in rows:
        counter.update(dict(row.counts))
    return [(word, counter[word]) for word in WORDS if word in counter]


def fidelity_colours() -> dict[str, dict[str, str]]:
    """Each fidelity's colour in the figures, and black or white, whichever is read better on it."""
    return {
        word: {"back": colour, "text": "#000000" if _luminance(colour) > 0.18 else "#ffffff"}
        for word, colour in FIDELITIES.items()
    }


def _luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it; contrasts are equal at 0.18."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
