"""Every claim of the paper with its verdict, as a table, and how many an exhibit has of each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import isnan

import pandas as pd

from repro.harness.catalog import in_order
from repro.harness.results import Results
from repro.harness.text import EMPTY, amount, digits, printed, ranged
from repro.report.claim import WORDS, Claim, Word
from repro.report.compare import of_exhibits
from repro.report.declared import report_of, with_report
from repro.report.framed import in_two
from repro.report.table import Table
from repro.report.texts import TABLES

NAME = "verdicts"
Line = Mapping[str, str]  # of the table


@lru_cache(maxsize=1)
def claims_of(results: Results) -> dict[str, list[Claim]]:
    """The claims of each experiment that has some."""
    makers = {name: getattr(report_of(name), "claims", None) for name in in_order(with_report())}
    shown = of_exhibits(results)
    return {name: [*claims(shown)] for name, claims in makers.items() if claims}


def lines_of(claims: Iterable[Claim]) -> list[Line]:
    return [_line(claim) for claim in claims]


def counted(claims: Iterable[Claim]) -> dict[str, str]:
    """Exhibit -> `3 of 4 consistent, 1 not reproduced`; the word alone of a single claim."""
    by_exhibit: dict[str, list[Word]] = {}
    for claim in claims:
        by_exhibit.setdefault(claim.exhibit, []).append(claim.verdict)
    return {exhibit: _counts(verdicts) for exhibit, verdicts in by_exhibit.items()}


def _counts(verdicts: Sequence[Word]) -> str:
    if len(verdicts) == 1:
        return verdicts[0]
    counter = Counter(verdicts)
    first, *rest = [f"{counter[word]} {word}" for word in WORDS if word in counter]
    return ", ".join([first.replace(" ", f" of {len(verdicts)} ", 1), *rest])


def all_lines(results: Results) -> list[Line]:
    """Of every claim; none if these results have no number to compare with the paper."""
    lines = lines_of(chain.from_iterable(claims_of(results).values()))
    return lines if any(line["ours"] != EMPTY for line in lines) else []


def table(lines: Sequence[Line]) -> Table:
    return Table(NAME, *TABLES[NAME], *in_two(pd.DataFrame(lines, dtype=object)))


def ours_of(claim: Claim) -> str:
    """`5.61x (4.75 to 6.62)`, with each setting that has a number; that of the first is shown."""
    known = [each for each in claim.ours if not isnan(each[0])]
    return ranged(*known[0], claim.unit) if known else EMPTY


def paper_of(claim: Claim) -> str:
    if claim.says or isnan(claim.paper):
        return claim.says or "no number"
    return amount(printed(claim.paper), claim.unit)


def others_of(claim: Claim) -> str:
    """`2.57x to 4.90x`: the numbers of ours behind the first one."""
    values = [value for value, _, _ in claim.ours[1:] if not isnan(value)]
    if not values or not claim.others:
        return ""
    ends = dict.fromkeys(map(digits, (min(values), max(values))))
    return amount(" to ".join(ends), claim.unit)


def _line(claim: Claim) -> Line:
    others = others_of(claim)
    reasons = (claim.doubt, claim.why, f"{claim.others} {others}" if others else "")
    return {
        "exhibit": claim.exhibit,
        "claim": claim.what,
        "paper": paper_of(claim),
        "ours": ours_of(claim),
        "fidelity": claim.fidelity,
        "verdict": claim.verdict,
        "why": "; ".join(filter(None, reasons)),
    }
