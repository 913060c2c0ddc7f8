"""The first screen of the page, from the claims: a headline, three columns and six rows.

The first claim of an exhibit is shown, which is that of the largest size. Its verdict decides the
column, and `6 of 8` counts the claims of the exhibit with this verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil, isnan

from repro.harness.results import Results
from repro.harness.spec import ON_CPU
from repro.paper import theory
from repro.report.claim import MODELLED, WORDS, Claim, Word
from repro.report.table import Table
from repro.report.text import TIMES, amount, digits
from repro.report.texts import SENTENCES
from repro.report.verdicts import others_of, ours_of, paper_of

HOLDS, OPEN, FAILS = "Holds", "Cannot tell", "Does not hold"
COLUMN: Mapping[Word, str] = {
    **dict.fromkeys(("reproduced", "consistent", "trend"), HOLDS),
    "cannot tell": OPEN,
    "not reproduced": FAILS,
}
IDENTICAL, SIZES, LARGEST = "Section 7, every K", "Table 1, sizes", "Table 1, largest"
SPEEDS = TRANSFORMER, AMOEBANET = "Table 2, Transformer", "Table 2, AmoebaNet-D"
BUBBLE, LINKS = "Section 2.3, bubble", ("Table 3, Transformer", "Table 3, AmoebaNet-D")
ON_ONE_GPU = {"consistency": "bits", "table1": "memory"}  # what one GPU is enough for
LANGUAGES, IMAGES, IMAGENET = "Figure 3, languages", "Figure 1, exponents", "Table 4, ImageNet"
IN_COLUMNS = (IDENTICAL, SIZES, LARGEST, *SPEEDS, BUBBLE)


@dataclass(frozen=True)
class Part:
    """A line of a row: one exhibit, with the claim that is shown."""

    verdict: Word
    count: str  # `6 of 8`, empty if the exhibit has one claim
    paper: str
    ours: str
    beside: str  # what changes the meaning of our number
    how: str

    @property
    def cells(self) -> list[str]:
        """Verdict, paper, ours and how we know, as texts."""
        count = f" ({self.count})" if self.count else ""
        return [self.verdict + count, self.paper, self.ours + self.beside, self.how]


@dataclass(frozen=True)
class Row:
    question: str
    about: str
    parts: list[Part]


@dataclass(frozen=True)
class Point:
    """One K of a panel."""

    K: int
    paper: float  # the printed number, or the paper's formula
    ours: float
    low: float  # ends of our range; both are `ours` without one
    high: float
    least: float  # with every setting that the paper leaves open
    most: float
    how: str


@dataclass(frozen=True)
class Panel:
    """Points over K. The labels are those of the last point, as (height, text, class)."""

    title: str
    about: str
    points: list[Point]
    unit: str
    step: float  # between two lines of the grid
    top: float
    limits: Sequence[float] = ()  # as which the paper's words are read

    HEIGHT, LINE = 138.5, 17.0  # of the plot, and of a line of text, in pixels

    def y(self, value: float) -> float:
        return 152 - self.HEIGHT * value / self.top

    @property
    def grid(self) -> list[float]:
        return [n * self.step for n in range(int(self.top / self.step) + 1)]

    @property
    def labels(self) -> list[tuple[float, str, str]]:
        """Beside the last point, moved apart where they would overlap."""
        last = self.points[-1]
        name = "formula" if self.limits else "paper"
        blocks = [(self.y(last.paper), [(f"{name} {self.text(last.paper)}", "paper strong")])]
        lines = [(f"ours {self.text(last.ours)}", "ours strong")]
        if last.low < last.high:
            lines.append((f"({digits(last.low)} to {digits(last.high)})", "ours"))
        blocks.append((self.y(last.ours), lines))
        for end, beyond in (
            (last.most, last.most > last.high),
            (last.least, last.least < last.low),
        ):
            if beyond:
                blocks.append((self.y(end), [("other settings", "ours")]))
        blocks.sort(key=lambda block: block[0])
        found, free = [], self.LINE - 5
        for middle, texts in blocks:
            start = max(free, middle + 5 - (len(texts) - 1) * self.LINE / 2)
            found += [(start + n * self.LINE, *text) for n, text in enumerate(texts)]
            free = start + len(texts) * self.LINE
        return found

    def text(self, value: float) -> str:
        return amount(digits(value) if self.limits else f"{float(digits(value)):g}", self.unit)


@dataclass(frozen=True)
class Column:
    title: str
    sentences: list[str]
    panels: list[Panel]


@dataclass(frozen=True)
class FirstScreen:
    headline: str
    where: str  # on what was measured
    modelled: bool  # whether no speed of the paper's models was measured
    columns: list[Column]
    rows: list[Row]


def first_screen(
    results: Results, claims: Mapping[str, Sequence[Claim]], tables: Iterable[Table]
) -> FirstScreen:
    """The first screen of results that can be compared with the paper.

    Args:
        claims: experiment -> its claims.
        tables: those of the report, for what slow links cost.
    """
    by_exhibit = of_exhibits(claims)
    shown = {name: _column(of) for name, of in by_exhibit.items() if _column(of)}
    panels = _panels(by_exhibit)
    columns = []
    for title in (HOLDS, OPEN, FAILS):
        here = [name for name in IN_COLUMNS if shown.get(name) == title]
        sentences = [_sentence(by_exhibit[name], f"{name}, {title}") for name in here]
        columns.append(Column(title, sentences, [panels[name] for name in here if name in panels]))
    speeds = chain.from_iterable(by_exhibit[name] for name in (*SPEEDS, *LINKS))
    modelled = all(claim.fidelity in MODELLED for claim in speeds)
    where = _where(results, claims)
    return FirstScreen(_headline(shown), where, modelled, columns, rows(claims, tables))


def of_exhibits(claims: Mapping[str, Sequence[Claim]]) -> dict[str, list[Claim]]:
    by_exhibit: dict[str, list[Claim]] = {}
    for claim in chain.from_iterable(claims.values()):
        by_exhibit.setdefault(claim.exhibit, []).append(claim)
    return by_exhibit


def _shown(claims: Sequence[Claim]) -> Claim:
    """The first; of two models that are bit-identical or not, the worse one."""
    if claims[0].exhibit == IDENTICAL:
        return max(claims, key=lambda claim: WORDS.index(claim.verdict))
    return claims[0]


def _column(claims: Sequence[Claim]) -> str:
    return COLUMN.get(_shown(claims).verdict, "")


def _sentence(claims: Sequence[Claim], name: str) -> str:
    shares = [f"{ours_of(claim)} at K = {claim.point[0]}" for claim in reversed(claims)]
    shares[0] = shares[0].replace(" at", " of a step at")
    open_at = [f"K = {of.point[0]}" for of in claims if of.verdict == "cannot tell"]
    between = f" At {' and '.join(open_at)} that depends on the limit." if open_at else ""
    return SENTENCES[name].format(
        how=_shown(claims).fidelity, shares=_listed(shares), between=between
    )


def _listed(texts: Sequence[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _headline(shown: Mapping[str, str]) -> str:
    """`Same model, same sizes, one of two speed-ups: that much of GPipe holds up.`, for one."""
    speeds = [shown[name] for name in SPEEDS if name in shown]
    fast = speeds.count(HOLDS)
    held = ["same model"] * (shown.get(IDENTICAL) == HOLDS)
    held += ["same sizes"] * (shown.get(SIZES) == HOLDS)
    if fast:
        held.append("both speed-ups" if fast == 2 else "one of two speed-ups")
    held += ["small bubble"] * (shown.get(BUBBLE) == HOLDS)
    failed = {
        IDENTICAL: "The model changes with K.",
        SIZES: "Its models do not have the printed sizes.",
        BUBBLE: "Its bubble is not “almost negligible”.",
    }
    sentences = [text for name, text in failed.items() if shown.get(name) == FAILS]
    if FAILS in speeds:
        sentences.append("Its models are not as fast as printed.")
    if held:
        sentences.insert(0, f"{', '.join(held).capitalize()}: that much of GPipe holds up.")
    return " ".join(sentences) or "Nothing here confirms or refutes GPipe yet."


def _where(results: Results, claims: Mapping[str, Sequence[Claim]]) -> str:
    """On what was measured, such as `two CPU cores and, for bits and memory, one GPU`."""
    measured = [run for run in results.runs if run.done and run.fidelity == "measured"]
    on_cpu = {run.machine: run.scale in ON_CPU for run in measured}
    counts = {True: 0, False: 0}
    for journal in results.journals:
        if journal.place.machine in on_cpu:
            kind = on_cpu[journal.place.machine]
            of = [int(each.get("count", 1)) for each in journal.environments.values()]
            counts[kind] = max([counts[kind], *of])
    cores, gpus = counts[True], counts[False]
    judged = {run.experiment for run in measured if run.scale not in ON_CPU} & {*claims}
    asked = [word for name, word in ON_ONE_GPU.items() if name in judged]
    use = f", for {_listed(asked)}," if asked and judged <= {*ON_ONE_GPU} else ""
    words = [_number(cores, "CPU core")] * (cores > 0)
    words += [_number(gpus, "GPU")] * (gpus > 0)
    text = f" and{use} ".join(words)
    return f"{text}; never on several accelerators" if text and gpus < 2 else text


def _number(count: int, name: str) -> str:
    words = {1: "one", 2: "two", 4: "four", 8: "eight"}
    return f"{words.get(count, count)} {name}{'s' * (count > 1)}"


def _panels(by_exhibit: Mapping[str, Sequence[Claim]]) -> dict[str, Panel]:
    """Exhibit -> its panel. Speeds have one scale."""
    points = {
        name: _points([claim for claim in by_exhibit.get(name, ()) if claim.point[1] == 32])
        for name in SPEEDS
    }
    ends = [max(each.paper, each.most) for each in chain.from_iterable(points.values())]
    top = max(ends, default=1.0)
    about = "speed over K = 2, M = 1"
    panels = {
        name: Panel(f"{name.partition(', ')[2]}, M = 32", about, found, TIMES, _step(top), top)
        for name, found in points.items()
        if found
    }
    bubbles = by_exhibit.get(BUBBLE, ())
    if found := _points(bubbles):
        top = 10.0 * ceil(max(max(each.paper, each.most) for each in found) / 10)
        limits = bubbles[0].most
        panels[BUBBLE] = Panel("Bubble, M = 4K", "share of a step", found, "%", 10, top, limits)
    return panels


def _step(top: float) -> float:
    return next(step for step in (1, 2, 5, 10, 20, 50, top) if top / step <= 5)


def _points(claims: Iterable[Claim]) -> list[Point]:
    points = []
    for claim in sorted(claims, key=lambda claim: claim.point):
        known = [each for each in claim.ours if not isnan(each[0])]
        if not known:
            continue
        values = [[end for end in each if not isnan(end)] for each in known]
        K, M = claim.point
        paper = 100 * theory.bubble_over_total(K, M) if isnan(claim.paper) else claim.paper
        every = [*chain.from_iterable(values)]
        ends = min(values[0]), max(values[0]), min(every), max(every)
        points.append(Point(K, paper, known[0][0], *ends, claim.fidelity))
    return points


def rows(claims: Mapping[str, Sequence[Claim]], tables: Iterable[Table]) -> list[Row]:
    """The paper's six questions."""
    by_exhibit = of_exhibits(claims)
    commands = {of.exhibit: name for name, found in claims.items() for of in found}

    def part(exhibit: str, paper: str = "{}", beside: str = "", how: str = "") -> Part:
        of = by_exhibit[exhibit]
        claim = _shown(of)
        same = [each.verdict for each in of].count(claim.verdict)
        count = f"{same} of {len(of)}" if len(of) > 1 else ""
        text = paper.format(paper_of(claim))
        if claim.verdict == "not tested here":
            reason = claim.doubt or claim.why or f"no result: `repro run {commands[exhibit]}`"
            return Part(claim.verdict, count, text, "", reason, "")
        ours, bracket, ends = ours_of(claim).partition(" (")
        how = "; ".join(filter(None, (claim.fidelity, how or claim.why)))
        others = others_of(claim)
        caveat = beside or (f"; otherwise {others}" if others else "")
        return Part(claim.verdict, count, text, ours, bracket + ends + caveat, how)

    updates, _, places = by_exhibit[IDENTICAL][-1].why.partition("; ")
    identical = part(IDENTICAL, beside=f" runs bit-identical to K = 1; {updates}", how=places)
    if identical.ours:
        both = [claim for claim in by_exhibit[IDENTICAL] if claim.ours]
        same, of = sum(claim.ours[0][0] for claim in both), sum(claim.paper for claim in both)
        identical = replace(identical, ours=f"{same:g} of {of:g}", count="")
    large, *_, small = by_exhibit[BUBBLE]
    limits, _, idle = large.why.partition("; ")
    at_small = f"{ours_of(small)} at K = {small.point[0]}"
    exponent = by_exhibit[IMAGES][0]
    return [
        Row("Same model for every K?", "Section 7", [identical]),
        Row(
            "How large a model?",
            "Table 1, K = 128",
            [
                part(SIZES, beside=" parameters"),
                part(LARGEST, "fits at most {}", how="M is not printed"),
            ],
        ),
        Row(
            "How fast?",
            "K = 8, M = 32 over K = 2, M = 1",
            [part(TRANSFORMER, "Transformer {}"), part(AMOEBANET, "AmoebaNet-D {}")],
        ),
        Row(
            "Do slow links matter?",
            "K = 8 over K = 2, no NVLink",
            [
                part(LINKS[0], "Transformer {}"),
                part(LINKS[1], "AmoebaNet-D {}", how=slowed(tables)),
            ],
        ),
        Row(
            "How large is the bubble?",
            "share of a step at M = 4K",
            [
                part(
                    BUBBLE,
                    beside=f" at K = {large.point[0]}, {at_small}; {idle}",
                    how=f"at K = {small.point[0]} {small.fidelity}; {limits}",
                )
            ],
        ),
        Row(
            "Do bigger models do better?",
            "toy languages, toy images, ImageNet",
            [
                part(LANGUAGES, how="only the sign compares"),
                part(IMAGES, beside=f"; {exponent.why}", how="scaling exponent"),
                part(IMAGENET, "ImageNet {}"),
            ],
        ),
    ]


def slowed(tables: Iterable[Table]) -> str:
    """`small, measured: step 0.984x at 100 MB/s, 1.44x at 10`, over a free link."""
    for table in tables:
        if table.name == "table3_links":
            lines = table.data[table.data["model"] == "AmoebaNet-D"].iloc[1:]
            steps = zip(lines["over a free link"], lines["link"], strict=True)
            found = [f"{digits(ratio)}{TIMES} at {link}" for ratio, link in steps]
            found[1:] = [text.removesuffix(" MB/s") for text in found[1:]]
            return f"small, measured: step {', '.join(found)}" if found else ""
    return ""


def lines(
    claims: Mapping[str, Sequence[Claim]], tables: Iterable[Table] = ()
) -> list[dict[str, str]]:
    """The rows as texts, a line for each part: for the terminal and the README."""
    columns = ("verdict", "paper", "ours", "how we know")
    found = []
    for row in rows(claims, tables):
        for number, part in enumerate(row.parts):
            question = "" if number else f"{row.question} {row.about}"
            cells = dict(zip(columns, part.cells, strict=True))
            found.append({"question": question, **cells})
    return found
