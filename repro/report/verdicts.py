"""The claims with their verdicts, one row for each exhibit, and the audit, as tables."""

from collections import Counter
from collections.abc import Sequence
from csv import DictReader
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from io import StringIO
from math import isinf, isnan
from pathlib import Path

from repro.claims.all_claims import all_claims
from repro.claims.audit import AuditLine, audit
from repro.claims.cells import BASE_CELL, DATA
from repro.claims.claim import WORDS, Claim, Evidence, Verdict, Word, judge
from repro.harness.results import Results
from repro.io.untrusted import LARGE, read_text
from repro.report.compare import beside_paper, without_tiny
from repro.report.declared import claims_of
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import MARKERS
from repro.report.table import EMPTY, Table, unguarded

HOLDING: frozenset[Word] = frozenset({"reproduced", "consistent"})
WRITTEN = "verdicts.csv"  # the table of verdicts in a folder of plots


@dataclass(frozen=True)
class Judged:
    claim: Claim
    evidence: Evidence | None
    verdict: Verdict


@dataclass(frozen=True)
class VerdictRow:
    """One line of the first screen; all cells are texts."""

    exhibit: str
    claim: str
    paper: str
    ours: str
    fidelity: str  # how ours is known; `-` where nothing was run
    verdict: str  # of its claims, counted where they differ


@dataclass(frozen=True)
class Exhibit:
    """Which claims make a row: patterns of their ids."""

    name: str
    claim: str
    shown: Sequence[str]  # whose numbers are shown
    counted: Sequence[str] = ()  # whose verdicts are counted; empty for those that are shown


EXHIBITS = tuple(Exhibit(**exhibit) for exhibit in DATA["exhibits"])


def evidence_of(results: Results) -> dict[str, Evidence]:
    """Claim id -> our number, of every experiment that has results beside the paper's."""
    compared = without_tiny(results)
    evidence: dict[str, Evidence] = {}
    for name in dict.fromkeys(claim.experiment for claim in all_claims() if claim.experiment):
        module = claims_of(name)
        if module is not None and beside_paper(compared, name):
            evidence |= module.evidence(compared)
    return evidence


def judged_claims(results: Results) -> list[Judged]:
    """Every claim with its verdict; tiny runs are never held against one."""
    evidence = evidence_of(results)
    beside = [(claim, evidence.get(claim.id)) for claim in all_claims()]
    return [Judged(claim, ours, judge(claim, ours)) for claim, ours in beside]


def written_rows(plots_dir: Path) -> list[VerdictRow]:
    """The rows that `repro report` wrote into a folder; none if it has no verdicts."""
    path = plots_dir / WRITTEN
    if not path.exists():
        return []
    text = StringIO(read_text(path, LARGE, within=plots_dir), newline="")
    lines = [{name: unguarded(cell) for name, cell in row.items()} for row in DictReader(text)]
    return [VerdictRow(**line) for line in lines]


def rows_of_exhibits(claims: Sequence[Judged]) -> list[VerdictRow]:
    rows = []
    for exhibit in EXHIBITS:
        shown = _matching(claims, exhibit.shown)
        counted = counted_claims(claims, exhibit)
        known = {judged.evidence.fidelity for judged in counted if judged.evidence}
        rows.append(
            VerdictRow(
                exhibit.name,
                exhibit.claim,
                _joined([_printed(judged.claim) for judged in shown]),
                _joined([_our_amount(judged) for judged in shown]),
                ", ".join(word for word in MARKERS if word in known) or EMPTY,
                verdict_text(counted),
            )
        )
    return rows


def counted_claims(claims: Sequence[Judged], exhibit: Exhibit) -> list[Judged]:
    """The claims whose verdicts an exhibit's row counts."""
    counted = _matching(claims, exhibit.counted or exhibit.shown)
    # A cell that the others are divided by is 1 whatever is true.
    return [judged for judged in counted if judged.claim.needs != BASE_CELL]


def what_holds(claims: Sequence[Judged]) -> str:
    """How many exhibits hold in all that was tested, in part or not at all, and how many claims."""
    groups: dict[str, list[str]] = {
        "hold in every number that could be tested": [],
        "hold in part": [],
        "do not hold or are not identified": [],
        "could be tried only with smaller models, which do not show them": [],
        "are not tested here": [],
    }
    full, part, nothing, small, untested = groups.values()
    known: list[Verdict] = []
    for exhibit in EXHIBITS:
        verdicts = [judged.verdict for judged in counted_claims(claims, exhibit)]
        tested = [verdict for verdict in verdicts if verdict.word != "not tested here"]
        words = {verdict.word for verdict in tested}
        known += tested
        if not tested:
            untested.append(exhibit.name)
        elif words <= HOLDING:
            full.append(exhibit.name)
        elif words & {*HOLDING, "trend"}:
            part.append(exhibit.name)
        elif all(verdict.smaller for verdict in tested):
            small.append(exhibit.name)
        else:
            nothing.append(exhibit.name)
    *before, last = [f"{len(names)} {text}" for text, names in groups.items() if names]
    told = f"{', '.join(before)}, and {last}" if before else last
    holding = sum(verdict.word in HOLDING for verdict in known)
    return (
        f"Of the {len(EXHIBITS)} exhibits below, {told}; {holding} of their {len(known)} claims "
        "that could be tested hold."
    )


def verdict_text(claims: Sequence[Judged]) -> str:
    """`3 of 4 consistent, 1 not reproduced`; with its reason where there is one claim."""
    if len(claims) == 1:
        return str(claims[0].verdict)
    ordered = sorted(claims, key=lambda judged: WORDS.index(judged.verdict.word))
    counts = Counter(judged.verdict.label for judged in ordered)
    (label, count), *rest = counts.items()
    texts = [f"{count} of {len(claims)} {label}", *(f"{count} {label}" for label, count in rest)]
    return ", ".join(texts)


def short_verdict(claims: Sequence[Judged]) -> str:
    """`3 of 8 hold`, with how many are not tested; the verdict itself where all have the same."""
    if len({judged.verdict.label for judged in claims}) == 1:
        return verdict_text(claims)
    words = [judged.verdict.word for judged in claims]
    untested = words.count("not tested here")
    text = f"{sum(word in HOLDING for word in words)} of {len(words) - untested} hold"
    return f"{text}, {untested} not tested" if untested else text


def tables(claims: Sequence[Judged]) -> list[Table]:
    """Verdicts, claims and audit; none unless some result stands beside the paper's numbers."""
    if not any(judged.evidence for judged in claims):
        return []
    return [verdicts(claims), claim_table(claims), audit_table()]


def verdicts(claims: Sequence[Judged]) -> Table:
    def column(name: str) -> Column[VerdictRow]:
        return Column(name, lambda row: plain(getattr(row, name)))

    columns = [column(field.name) for field in fields(VerdictRow)]
    note = (
        "Each verdict is computed from the recorded runs by the rule in `repro/claims/claim.py`, "
        "with tolerances that were fixed before ours were compared. The table `claims` has every "
        "cell and sentence."
    )
    title = "What holds: one line for each exhibit of the paper"
    return declared("verdicts", title, note, rows_of_exhibits(claims), columns, "")


def claim_table(claims: Sequence[Judged]) -> Table:
    def of_claim(name: str, shown: str = "") -> Column[Judged]:
        return Column(shown, lambda line: plain(getattr(line.claim, name)), csv=shown or name)

    columns: list[Column[Judged]] = [
        of_claim("id"),
        of_claim("exhibit", "exhibit"),
        of_claim("version"),
        of_claim("text", "claim"),
        Column("paper", lambda line: Cell(line.claim.value, _printed(line.claim))),
        of_claim("unit"),
        Column("", lambda line: Cell(line.claim.low), csv="allowed: low"),
        Column("", lambda line: Cell(line.claim.high), csv="allowed: high"),
        of_claim("tolerance"),
        Column("ours", _our_cell, ends=("ours: low", "ours: high")),
        Column("fidelity", lambda line: plain(line.evidence.fidelity if line.evidence else "")),
        Column("verdict", lambda line: plain(line.verdict.label)),
        Column("why", lambda line: plain(line.verdict.why)),
        Column("", lambda line: Cell([*line.evidence.runs] if line.evidence else []), csv="runs"),
    ]
    note = (
        "Every cell of the paper's tables, every point of its figures, and each sentence with a "
        'number, also of texts about the paper ("sources"). The csv file has the tolerance of each '
        "with its reason, and the runs."
    )
    title = "Every claim, with its verdict"
    return declared("claims", title, note, claims, columns, "")


def audit_table() -> Table:
    def column(name: str) -> Column[AuditLine]:
        return Column(name, lambda line: plain(getattr(line, name)))

    columns: list[Column[AuditLine]] = [
        Column("what is held against what", lambda line: plain(line.part)),
        *map(column, ("place", "printed", "follows", "arithmetic")),
        Column("agrees", lambda line: plain("yes" if line.agrees else "no")),
    ]
    note = (
        "Each line holds printed numbers against others, so no result of ours is needed. Numbers "
        "of a text about the paper are quoted from that text."
    )
    title = "Audit: what is printed, and what follows from other printed numbers"
    return declared("audit", title, note, audit(), columns, "")


def _our_cell(line: Judged) -> Cell:
    ours = line.evidence
    if ours is None:
        return Cell()
    text = _amount(line.claim, ours.value)
    if text != EMPTY and not isnan(ours.low):
        text += f" [{_number(ours.low)}, {_number(ours.high)}]"
    return Cell(ours.value, text, ours.low, ours.high)


def _joined(texts: list[str]) -> str:
    return ", ".join(texts if len(set(texts)) > 1 else texts[:1])


def _printed(claim: Claim) -> str:
    """The printed number, or the limit as which a sentence without a number is read."""
    if not isnan(claim.value):
        return _amount(claim, claim.value, digits=4)
    if isinf(claim.high):
        return f"> {_amount(claim, claim.low)}"
    return f"{'<' if claim.direction else '<='} {_amount(claim, claim.high)}"


def _our_amount(judged: Judged) -> str:
    return _amount(judged.claim, judged.evidence.value) if judged.evidence else EMPTY


def _amount(claim: Claim, value: float, digits: int = 3) -> str:
    """A number in the claim's unit: `83.9B`, `22.6x`, `65.6 %`."""
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


def _matching(claims: Sequence[Judged], patterns: Sequence[str]) -> list[Judged]:
    return [
        judged
        for judged in claims
        if any(fnmatch(judged.claim.id, pattern) for pattern in patterns)
    ]
