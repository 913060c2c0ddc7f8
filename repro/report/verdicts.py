"""The claims with their verdicts, a line for each exhibit, and the audit, as tables."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from csv import DictReader
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from io import StringIO
from math import isinf, isnan
from pathlib import Path
from typing import Any

import pandas as pd

from repro.claims.all_claims import BASE_CELL, DATA, all_claims, arithmetic, audit, chosen
from repro.claims.claim import WORDS, Claim, Evidence, Verdict, Word, judge
from repro.harness.results import Results
from repro.io.untrusted import LARGE, read_text
from repro.report.compare import beside_paper, without_tiny
from repro.report.declared import report_of, with_cells
from repro.report.framed import INTERVAL, RANGE, in_two
from repro.report.table import EMPTY, Cell, Table, unguarded
from repro.report.texts import FIDELITIES, TABLES

HOLDING: frozenset[Word] = frozenset({"reproduced", "consistent", "trend"})
WRITTEN = "verdicts.csv"  # the table of verdicts in a folder of plots
Counts = list[tuple[str, int]]  # verdict -> claims that have it, the best verdict first


@dataclass(frozen=True)
class Judged:
    claim: Claim
    evidence: Evidence | None
    verdict: Verdict

    @property
    def ran(self) -> bool:
        return self.evidence is not None and bool(self.evidence.runs)

    @property
    def ours(self) -> str:
        return _amount(self.claim, self.evidence.value) if self.evidence else EMPTY


@dataclass(frozen=True)
class Exhibit:
    """A line of the first screen: such as "Table 2, Transformer", and what it claims."""

    name: str
    claim: str
    shown: list[Judged]  # claims whose numbers are shown
    counted: list[Judged]  # claims whose verdicts are counted

    @property
    def paper(self) -> str:
        return _joined([_printed(judged.claim) for judged in self.shown])

    @property
    def ours(self) -> str:
        """Without numbers that say nothing about their claim."""
        untested = "not tested here"
        return _joined([EMPTY if j.verdict.word == untested else j.ours for j in self.shown])

    @property
    def experiment(self) -> str:
        named = (judged.claim.experiment for judged in self.counted)
        return next(filter(None, named), "")

    @property
    def fidelities(self) -> list[str]:
        known = {judged.evidence.fidelity for judged in self.counted if judged.evidence}
        return [word for word in FIDELITIES if word in known]

    @property
    def counts(self) -> Counts:
        return summed([self])

    @property
    def verdict(self) -> str:
        """`3 of 4 consistent, 1 not reproduced`; with its reason where there is one claim."""
        if len(self.counted) == 1:
            return str(self.counted[0].verdict)
        ordered = sorted(self.counted, key=lambda judged: WORDS.index(judged.verdict.word))
        counts = Counter(judged.verdict.label for judged in ordered)
        first, *rest = [f"{count} {label}" for label, count in counts.items()]
        return ", ".join([first.replace(" ", f" of {len(self.counted)} ", 1), *rest])

    @property
    def short(self) -> str:
        """`3 of 8 hold, 1 not reproduced`; the verdict where all have the same."""
        if len({judged.verdict.label for judged in self.counted}) == 1:
            return self.verdict
        words = [judged.verdict.word for judged in self.counted]
        text = f"{sum(word in HOLDING for word in words)} of {len(words)} hold"
        against = words.count("not reproduced")
        return f"{text}, {against} not reproduced" if against else text


@lru_cache(maxsize=1)
def judged_claims(results: Results) -> list[Judged]:
    """Every claim with its verdict; tiny runs are never held against one."""
    evidence = evidence_of(results)
    beside = [(claim, evidence.get(claim.id)) for claim in all_claims()]
    return [Judged(claim, ours, judge(claim, ours)) for claim, ours in beside]


def evidence_of(results: Results) -> dict[str, Evidence]:
    """Claim id -> our number, of every experiment that has results beside the paper's."""
    compared = without_tiny(results)
    found = [*arithmetic()]
    for name in dict.fromkeys(claim.experiment for claim in all_claims() if claim.experiment):
        report = report_of(name)
        if report is not None and beside_paper(compared, name):
            found += report.evidence(compared)
    return chosen(found)


def exhibits(claims: Sequence[Judged]) -> list[Exhibit]:
    lines = []
    for line in DATA["exhibits"]:
        shown = _matching(claims, line["shown"])
        counted = _matching(claims, line.get("counted", line["shown"]))
        # A cell that the others are divided by is 1 whatever is true.
        counted = [judged for judged in counted if judged.claim.needs != BASE_CELL]
        lines.append(Exhibit(line["name"], line["claim"], shown, counted))
    return lines


def _matching(claims: Sequence[Judged], patterns: Sequence[str]) -> list[Judged]:
    return [each for each in claims if any(fnmatch(each.claim.id, p) for p in patterns)]


def summed(lines: Sequence[Exhibit]) -> Counts:
    counter = Counter(judged.verdict.word for line in lines for judged in line.counted)
    return [(word, counter[word]) for word in WORDS if word in counter]


def headline(claims: Sequence[Judged], tables: Mapping[str, Table]) -> dict[str, str]:
    """Topic -> what these results say of it; `claims.toml` says when they say a sentence."""
    said: dict[str, list[str]] = {}
    for line in DATA["headline"]:
        of = _matching(claims, line.get("of", []))
        word = line.get("all", line.get("some"))
        which = [each for each in of if each.ran and word in (None, each.verdict.word)]
        if len(which) == len(of) or ("some" in line and which):
            with suppress(LookupError):  # a cell that has no number
                text = with_cells(line["text"], tables)
                text = text.format(**_words(of, which)) if of else text
                said.setdefault(line["topic"], []).append(text)
    return {topic: " ".join(sentences) for topic, sentences in said.items()}


def _words(of: list[Judged], which: Sequence[Judged]) -> dict[str, str]:
    whole = Exhibit("", "", of, of)
    labels = {each.verdict.label for each in of}
    listed = [f"{re.split(r',| [(]', each.claim.text)[0]} ({each.ours})" for each in which]
    return {
        "ours": " and ".join(whole.ours.rsplit(", ", 1)),
        "paper": " and ".join(whole.paper.rsplit(", ", 1)),
        "how": " and ".join(whole.fidelities),
        "verdict": whole.verdict if len(labels) > 1 else labels.pop(),
        "which": "; ".join(listed),
    }


def written_rows(plots_dir: Path) -> list[dict[str, str]]:
    """The verdicts that `repro report` wrote into a folder; none if it has none."""
    path = plots_dir / WRITTEN
    if not path.exists():
        return []
    text = StringIO(read_text(path, LARGE, within=plots_dir), newline="")
    return [{name: unguarded(cell) for name, cell in row.items()} for row in DictReader(text)]


def tables(claims: Sequence[Judged]) -> list[Table]:
    if not any(judged.ran for judged in claims):
        return []
    return [verdicts(claims), claim_table(claims), audit_table()]


def verdicts(claims: Sequence[Judged]) -> Table:
    names = ["name", "claim", "paper", "ours", "fidelities", "verdict"]
    frame = pd.DataFrame([[getattr(line, name) for name in names] for line in exhibits(claims)])
    frame = frame.set_axis(["exhibit", *names[1:4], "fidelity", "verdict"], axis=1)
    frame["fidelity"] = frame["fidelity"].str.join(", ").replace("", EMPTY)
    return Table("verdicts", *TABLES["verdicts"], *in_two(frame))


def claim_table(claims: Sequence[Judged]) -> Table:
    frame = pd.DataFrame([_line(judged) for judged in claims], dtype=object)
    hidden = ["id", "version", "unit", "allowed: low", "allowed: high", "tolerance", "runs"]
    return Table("claims", *TABLES["claims"], *in_two(frame, hidden=hidden))


def _line(judged: Judged) -> dict[str, Any]:
    claim, ours = judged.claim, judged.evidence
    cell = Cell()
    if ours is not None:
        text = _amount(claim, ours.value)
        if not isnan(ours.value + ours.low):
            around = RANGE if ours.is_range else INTERVAL
            text += around.format(_number(ours.low), _number(ours.high))
        cell = Cell(ours.value, text, ours.low, ours.high)
    line: dict[str, Any] = {"id": claim.id, "exhibit": claim.exhibit, "version": claim.version}
    line |= {"claim": claim.text, "paper": Cell(claim.value, _printed(claim)), "unit": claim.unit}
    line |= {
        "allowed: low": claim.ends[0],
        "allowed: high": claim.ends[1],
        "tolerance": claim.tolerance,
    }
    line |= {"ours": cell, "ours: low": cell.low, "ours: high": cell.high}
    line |= {"fidelity": ours.fidelity if ours else "", "verdict": judged.verdict.label}
    return line | {"why": judged.verdict.why, "runs": [*ours.runs] if ours else []}


def audit_table() -> Table:
    frame = pd.DataFrame(audit()).drop(columns=["formulas", "meant"])
    frame["agrees"] = ["yes" if agrees else "no" for agrees in frame["agrees"]]
    frame = frame.rename(columns={"part": "what is held against what"})
    return Table("audit", *TABLES["audit"], *in_two(frame))


def _joined(texts: list[str]) -> str:
    return ", ".join(texts if len(set(texts)) > 1 else texts[:1])


def _printed(claim: Claim) -> str:
    """The printed number, or the limit as which a sentence without a number is read."""
    if not isnan(claim.value):
        return _amount(claim, claim.value, digits=4)
    low, high = claim.ends
    if isinf(high):
        return f"> {_amount(claim, low)}"
    limits = " or ".join(_amount(claim, most) for _, most in claim.readings.values())
    return f"{'<' if claim.direction else '<='} {limits}"


def _amount(claim: Claim, value: float, digits: int = 3) -> str:
    if isnan(value):
        return EMPTY
    text = _number(value, digits)
    if not claim.unit:
        return text
    return f"{text}{'' if claim.unit == 'x' else ' '}{claim.unit}"


def _number(value: float, digits: int = 3) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"
