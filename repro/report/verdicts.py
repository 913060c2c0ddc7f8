"""Every claim of the paper with its verdict, as a table, and how many an exhibit has of each."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isnan

import pandas as pd

from repro.harness.results import Results
from repro.harness.text import EMPTY, amount, digits, printed, ranged
from repro.report.claim import WORDS, Claim, Word
from repro.report.compare import of_exhibits
from repro.report.declared import report_of
from repro.report.framed import in_two
from repro.report.table import Table
from repro.report.texts import TABLES

NAME = "verdicts"
Line = Mapping[str, str]  # of the table


def claims_of(results: Results, experiment: str) -> list[Claim]:
    claims = getattr(report_of(experiment), "claims", None)
    return [*claims(of_exhibits(results))] if claims else []


def lines_of(claims: Iterable[Claim]) -> list[Line]:
    """Of every claim; none if no number of ours can be compared with the paper."""
    lines = [_line(claim) for claim in claims]
    return lines if any(line["ours"] != EMPTY for line in lines) else []


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


def answer(claims: Sequence[Claim]) -> str:
    """All verdicts, and the first claim that has a number of ours; "" without such a claim."""
    for line in lines_of(claims):
        if line["ours"] != EMPTY:
            verdict = _counts([claim.verdict for claim in claims])
            return f"{verdict}; {line['claim']}: {line['ours']}, paper {line['paper']}"
    return ""


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
    others = f"{claim.others} {others}" if others else ""
    reasons = (claim.doubt, claim.beside, claim.why, others)
    return {
        "exhibit": claim.exhibit,
        "claim": claim.what,
        "paper": paper_of(claim),
        "ours": ours_of(claim),
        "fidelity": claim.fidelity,
        "verdict": claim.verdict,
        "why": "; ".join(filter(None, reasons)),
    }
