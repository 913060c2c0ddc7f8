"""Every claim of the paper with its verdict, as a table, and a line for each exhibit."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import isinf, isnan

import pandas as pd

from repro.harness.catalog import in_order
from repro.harness.results import Results
from repro.report.claim import MODELLED, WORDS, Claim, Word
from repro.report.compare import of_exhibits
from repro.report.declared import report_of, with_report
from repro.report.framed import INTERVAL, RANGE, in_two
from repro.report.table import EMPTY, Table
from repro.report.texts import TABLES

NAME = "verdicts"
Counts = list[tuple[Word, int]]  # verdict -> claims that have it, the best verdict first
Line = Mapping[str, str]  # of the table


@dataclass(frozen=True)
class Exhibit:
    """A line of the first screen. Its first claim is shown, and all are counted."""

    name: str  # such as "Table 2, Transformer"
    lines: list[Line]

    @property
    def first(self) -> Line:
        return self.lines[0]

    @property
    def fidelities(self) -> list[str]:
        return [*dict.fromkeys(line["fidelity"] for line in self.lines if line["ours"] != EMPTY)]

    @property
    def counts(self) -> Counts:
        return summed([self])

    @property
    def verdict(self) -> str:
        """`3 of 4 consistent, 1 not reproduced`; the word alone of a single claim."""
        if len(self.lines) == 1:
            return self.first["verdict"]
        first, *rest = [f"{count} {word}" for word, count in self.counts]
        return ", ".join([first.replace(" ", f" of {len(self.lines)} ", 1), *rest])

    @property
    def cells(self) -> list[str]:
        """Those of README's table."""
        first = self.first
        how = ", ".join(self.fidelities) or EMPTY
        return [self.name, first["claim"], first["paper"], first["ours"], how, self.verdict]


@lru_cache(maxsize=1)
def claims_of(results: Results) -> dict[str, list[Claim]]:
    """The claims of each experiment that has some."""
    makers = {name: getattr(report_of(name), "claims", None) for name in in_order(with_report())}
    shown = of_exhibits(results)
    return {name: [*claims(shown)] for name, claims in makers.items() if claims}


def lines_of(claims: Iterable[Claim]) -> list[Line]:
    return [_line(claim) for claim in claims]


def exhibits(lines: Iterable[Line]) -> list[Exhibit]:
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        by_name.setdefault(line["exhibit"], []).append(line)
    return [Exhibit(name, of) for name, of in by_name.items()]


def summed(rows: Iterable[Exhibit]) -> Counts:
    counter = Counter(line["verdict"] for row in rows for line in row.lines)
    return [(word, counter[word]) for word in WORDS if word in counter]


def all_lines(results: Results) -> list[Line]:
    """Of every claim; none if these results have no number to compare with the paper."""
    lines = lines_of(chain.from_iterable(claims_of(results).values()))
    return lines if any(line["ours"] != EMPTY for line in lines) else []


def table(lines: Sequence[Line]) -> Table:
    return Table(NAME, *TABLES[NAME], *in_two(pd.DataFrame(lines, dtype=object)))


def _line(claim: Claim) -> Line:
    ours = next((each for each in claim.ours if not isnan(each[0])), None)
    text = EMPTY
    if ours is not None:
        value, low, high = ours
        text = _amount(claim, value)
        if not isnan(low + high):
            around = RANGE if claim.fidelity in MODELLED else INTERVAL
            text += around.format(_number(low), _number(high))
    return {
        "exhibit": claim.exhibit,
        "claim": claim.what,
        "paper": _printed(claim),
        "ours": text,
        "fidelity": claim.fidelity,
        "verdict": claim.verdict,
        "why": "; ".join(filter(None, (claim.doubt, claim.why))),
    }


def _printed(claim: Claim) -> str:
    """The printed number, or the limit as which a sentence without a number is read."""
    if not isnan(claim.paper):
        return _amount(claim, claim.paper, digits=4)
    if isinf(claim.most):
        return f"> {_amount(claim, claim.least)}"
    return f"<= {_amount(claim, claim.most)}"


def _amount(claim: Claim, value: float, digits: int = 3) -> str:
    if not claim.unit:
        return _number(value, digits)
    return f"{_number(value, digits)}{'' if claim.unit == 'x' else ' '}{claim.unit}"


def _number(value: float, digits: int = 3) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
