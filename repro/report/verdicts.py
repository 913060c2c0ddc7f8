"""The claims with their verdicts, one row for each exhibit, and the audit, as tables."""

from collections import Counter
from collections.abc import Sequence
from csv import DictReader
from dataclasses import dataclass
from fnmatch import fnmatch
from io import StringIO
from math import isinf, isnan
from pathlib import Path

from repro.claims.all_claims import all_claims
from repro.claims.audit import AuditLine, audit
from repro.claims.cells import BASE_CELL
from repro.claims.claim import WORDS, Claim, Evidence, Verdict, Word, judge
from repro.harness.results import Results
from repro.io.untrusted import LARGE, read_text
from repro.paper import breakdown
from repro.report.compare import beside_paper, without_tiny
from repro.report.declared import claims_of
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import MARKERS
from repro.report.table import EMPTY, Table, unguarded

HOLDING: frozenset[Word] = frozenset({"reproduced", "consistent"})
WRITTEN = "verdicts.csv"  # the table of verdicts in a folder of plots


@dataclass(frozen=True)
class Judged:
    """A claim, our number for it if there is one, and the verdict."""

    claim: Claim
    evidence: Evidence | None
    verdict: Verdict


@dataclass(frozen=True)
class VerdictRow:
    """One line of the first screen; all cells are texts.

    Attributes:
        exhibit: of the paper.
        claim: what is held against it.
        paper: what the paper has.
        ours: the same of ours.
        fidelity: how ours is known; `-` where nothing was run.
        verdict: of the claims of this row, counted where they differ.
    """

    exhibit: str
    claim: str
    paper: str
    ours: str
    fidelity: str
    verdict: str


@dataclass(frozen=True)
class Exhibit:
    """Which claims make a row.

    Attributes:
        name: of the exhibit.
        claim: what is claimed.
        shown: patterns of the ids whose numbers are shown.
        counted: patterns of the ids whose verdicts are counted; empty for those that are shown.
    """

    name: str
    claim: str
    shown: tuple[str, ...]
    counted: tuple[str, ...] = ()


EXHIBITS = (
    Exhibit(
        "Table 1, sizes",
        "parameters at K=8 and K=128",
        ("table1/amoebanet-d/Pipeline-8/parameters", "table1/transformer/Pipeline-128/parameters"),
        ("table1/*/parameters",),
    ),
    Exhibit(
        "Table 1, largest",
        "largest that fits, K=8 and K=128",
        ("table1/amoebanet-d/Pipeline-8/largest", "table1/transformer/Pipeline-128/largest"),
        ("table1/*/largest",),
    ),
    Exhibit(
        "Table 1, memory",
        "peak activations of the printed sizes",
        ("table1/amoebanet-d/Pipeline-8/activ*", "table1/transformer/Pipeline-128/activ*"),
        ("table1/*/activations",),
    ),
    Exhibit(
        "Table 1, growth",
        "parameters over those of Naive-1",
        ("table1/*/times",),
    ),
    Exhibit(
        "Table 2, AmoebaNet-D",
        "speed, K=8, M=32 over K=2, M=1",
        ("table2/amoebanet-d/K=8/M=32",),
        ("table2/amoebanet-d/K=*/M=*",),
    ),
    Exhibit(
        "Table 2, Transformer",
        "speed, K=8, M=32 over K=2, M=1",
        ("table2/transformer/K=8/M=32",),
        ("table2/transformer/K=*/M=*",),
    ),
    Exhibit(
        "Table 3, slow links",
        "throughput, K=8 over K=2",
        ("table3/*/K=8/*",),
        ("table3/*/K=*",),
    ),
    Exhibit(
        "Step breakdown",
        "computation, recompute of a step",
        ("breakdown/computation", "breakdown/recompute"),
        tuple(f"breakdown/{part.part}" for part in breakdown()),
    ),
    Exhibit(
        "Section 2.3, bubble",
        "idle share at M = 4K, for K = 2, 4, 8",
        ("bubble/K=*/negligible",),
    ),
    Exhibit(
        "Table 4, images",
        "ImageNet accuracy; transfer gain",
        ("table4/ImageNet*", "table4/transfer"),
        ("table4/*",),
    ),
    Exhibit(
        "Table 5, batch size",
        "BLEU of the largest batch; its gain",
        ("table5/4000000/BLEU", "table5/BLEU"),
        ("table5/*",),
    ),
    Exhibit(
        "Figure 1, size",
        "exponents of quality in the size",
        ("figure1?/exponent",),
        ("figure1*",),
    ),
    Exhibit("Figure 2, schedule", "stages in another order than drawn", ("figure2/order",)),
    Exhibit(
        "Figure 3, languages",
        "BLEU gained by size, transfer, depth",
        ("figure3/size", "figure3/transfer", "figure3/depth"),
        ("figure3/*",),
    ),
    Exhibit(
        "Section 7, every K",
        "trainings that differ in any bit",
        ("consistency/*",),
    ),
)


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
    """One row for each exhibit, of claims that are already judged."""
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
    parts = [f"{len(names)} {text}" for text, names in groups.items() if names]
    *before, last = parts
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
    """One line for each exhibit."""
    columns: list[Column[VerdictRow]] = [
        Column("exhibit", lambda row: plain(row.exhibit)),
        Column("claim", lambda row: plain(row.claim)),
        Column("paper", lambda row: plain(row.paper)),
        Column("ours", lambda row: plain(row.ours)),
        Column("fidelity", lambda row: plain(row.fidelity)),
        Column("verdict", lambda row: plain(row.verdict)),
    ]
    note = (
        "Each verdict is computed from the recorded runs by the rule in `repro/claims/claim.py`, "
        "with tolerances that were fixed before ours were compared. The table `claims` has every "
        "cell and sentence."
    )
    title = "What holds: one line for each exhibit of the paper"
    return declared("verdicts", title, note, rows_of_exhibits(claims), columns, "")


def claim_table(claims: Sequence[Judged]) -> Table:
    """Every claim."""
    columns: list[Column[Judged]] = [
        Column("", lambda line: plain(line.claim.id), csv="id"),
        Column("exhibit", lambda line: plain(line.claim.exhibit)),
        Column("", lambda line: plain(line.claim.version), csv="version"),
        Column("claim", lambda line: plain(line.claim.text)),
        Column("paper", lambda line: Cell(line.claim.value, _printed(line.claim))),
        Column("", lambda line: plain(line.claim.unit), csv="unit"),
        Column("", lambda line: Cell(line.claim.low), csv="allowed: low"),
        Column("", lambda line: Cell(line.claim.high), csv="allowed: high"),
        Column("", lambda line: plain(line.claim.tolerance), csv="tolerance"),
        Column("ours", _our_cell, ends=("ours: low", "ours: high")),
        Column("fidelity", lambda line: plain(line.evidence.fidelity if line.evidence else "")),
        Column("verdict", lambda line: plain(line.verdict.label)),
        Column("why", lambda line: plain(line.verdict.why)),
        Column("", _runs, csv="runs"),
    ]
    note = (
        "Every cell of the paper's tables, every point of its figures, and each sentence with a "
        'number, also of texts about the paper ("sources"). The csv file has the tolerance of each '
        "with its reason, and the runs."
    )
    title = "Every claim, with its verdict"
    return declared("claims", title, note, claims, columns, "")


def audit_table() -> Table:
    """The paper against itself, and texts about it against the paper."""
    columns: list[Column[AuditLine]] = [
        Column("what is held against what", lambda line: plain(line.part)),
        Column("place", lambda line: plain(line.place)),
        Column("printed", lambda line: plain(line.printed)),
        Column("follows", lambda line: plain(line.follows)),
        Column("arithmetic", lambda line: plain(line.arithmetic)),
        Column("agrees", lambda line: plain("yes" if line.agrees else "no")),
    ]
    note = (
        "Each line holds printed numbers against others, so no result of ours is needed. Numbers "
        "of a text about the paper are quoted from that text."
    )
    title = "Audit: what is printed, and what follows from other printed numbers"
    return declared("audit", title, note, audit(), columns, "")


def _our_cell(line: Judged) -> Cell:
    if line.evidence is None:
        return Cell()
    return Cell(line.evidence.value, _ours(line), line.evidence.low, line.evidence.high)


def _runs(line: Judged) -> Cell:
    return Cell(list(line.evidence.runs) if line.evidence else [])


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


def _ours(judged: Judged) -> str:
    ours = judged.evidence
    if ours is None:
        return EMPTY
    text = _amount(judged.claim, ours.value)
    if isnan(ours.low) or text == EMPTY:
        return text
    return f"{text} [{_number(ours.low)}, {_number(ours.high)}]"


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


def _matching(claims: Sequence[Judged], patterns: tuple[str, ...]) -> list[Judged]:
    return [
        judged
        for judged in claims
        if any(fnmatch(judged.claim.id, pattern) for pattern in patterns)
    ]
