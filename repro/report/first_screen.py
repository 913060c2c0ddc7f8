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
from repro.harness.text import TIMES, amount, digits
from repro.paper import theory
from repro.report.claim import MODELLED, WORDS, Claim, Word, number
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
ON_ONE_GPU = {"consistency": "equal bits", "table1": "memory"}  # what one GPU is enough for
LANGUAGES, IMAGES, IMAGENET = "Figure 3, languages", "Figure 1, exponents", "Table 4, ImageNet"
AT = f"M = 4 {TIMES} K"  # where the paper calls the bubble almost negligible
IN_COLUMNS = (IDENTICAL, SIZES, LARGEST, *SPEEDS, BUBBLE)
# The paper's six questions, what each is about, and the exhibits that answer it.
QUESTIONS = (
    ("Same model for every K?", "Section 7", (IDENTICAL,)),
    ("How large a model?", "Table 1, K = 128", (SIZES, LARGEST)),
    ("How fast?", "speed at K = 8, M = 32 over K = 2, M = 1", SPEEDS),
    ("Do slow links matter?", "speed without NVLink, K = 8 over K = 2", LINKS),
    ("How large is the bubble?", f"share of a step at {AT}", (BUBBLE,)),
    (
        "Do bigger models do better?",
        "toy languages, toy images, ImageNet",
        (LANGUAGES, IMAGES, IMAGENET),
    ),
)
# Exhibit -> what is said of the paper's number.
OF_PAPER = {name: f"{name.partition(', ')[2]} {{}}" for name in (*SPEEDS, *LINKS)}
OF_PAPER |= {LARGEST: "fits at most {}", IMAGENET: "ImageNet {}"}


@dataclass(frozen=True)
class Part:
    """A line of a row: one exhibit, with the claim that is shown."""

    verdict: Word
    count: str  # `6 of 8`, empty if the exhibit has one claim
    paper: str
    ours: str
    beside: str  # what changes the meaning of our number
    how: str


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
    least: float  # of our numbers with every setting that the paper leaves open
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

    HEIGHT, LINE = 120.5, 17.0  # of the plot, and of a line of text, in pixels

    def y(self, value: float) -> float:
        return self.HEIGHT * (1 - value / self.top) + 13.5

    @property
    def grid(self) -> list[float]:
        return [n * self.step for n in range(int(self.top / self.step) + 1)]

    @property
    def labels(self) -> list[tuple[float, str, str]]:
        """Beside the last point, moved apart where they would overlap."""
        last = self.points[-1]
        name = "formula" if self.limits else "paper"
        least, most = (("other cuts " + self.text(end), "ours") for end in (last.least, last.most))
        lines = [(f"ours {self.text(last.ours)}", "ours strong")]
        if last.low < last.high:
            lines.append((f"({digits(last.low)} to {digits(last.high)})", "ours"))
        blocks = [(self.y(last.paper), [(f"{name} {self.text(last.paper)}", "paper strong")])]
        blocks.append((self.y(last.ours), lines))
        blocks += [(self.y(last.most), [most])] * (last.most > last.high)
        blocks += [(self.y(last.least), [least])] * (last.least < last.low)
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


def first_screen(results: Results, claims: Mapping[str, Sequence[Claim]]) -> FirstScreen:
    """The first screen of results that can be compared with the paper.

    Args:
        claims: experiment -> its claims.
    """
    by_exhibit = of_exhibits(claims)
    shown = {name: _column(of) for name, of in by_exhibit.items() if _column(of)}
    panels = _panels(by_exhibit)
    columns = []
    for title in (HOLDS, OPEN, FAILS):
        here = [name for name in IN_COLUMNS if shown.get(name) == title]
        sentences = [_sentence(by_exhibit[name], f"{name}, {title}") for name in here]
        sentences += _missed(by_exhibit) if title == FAILS else []
        columns.append(Column(title, sentences, [panels[name] for name in here if name in panels]))
    speeds = chain.from_iterable(by_exhibit[name] for name in (*SPEEDS, *LINKS))
    modelled = all(claim.fidelity in MODELLED for claim in speeds)
    where = _where(results, claims)
    headline = _headline(shown, _alike(by_exhibit[SIZES]))
    return FirstScreen(headline, where, modelled, columns, rows(claims))


def of_exhibits(claims: Mapping[str, Sequence[Claim]]) -> dict[str, list[Claim]]:
    by_exhibit: dict[str, list[Claim]] = {}
    for claim in chain.from_iterable(claims.values()):
        by_exhibit.setdefault(claim.exhibit, []).append(claim)
    return by_exhibit


def _shown(claims: Sequence[Claim]) -> Claim:
    """The first; of two models that are bit-identical or not, both as one claim."""
    if claims[0].exhibit != IDENTICAL:
        return claims[0]
    worst = max(claims, key=lambda claim: WORDS.index(claim.verdict))
    if worst.verdict == "not tested here":
        return worst
    same, of = sum(claim.ours[0][0] for claim in claims), sum(claim.paper for claim in claims)
    beside = claims[-1].beside  # with the longest runs
    return replace(worst, ours=[number(same)], paper=of, unit=f"of {of:g}", beside=beside)


def _column(claims: Sequence[Claim]) -> str:
    return COLUMN.get(_shown(claims).verdict, "")


def _sentence(claims: Sequence[Claim], name: str) -> str:
    shown = _shown(claims)
    alike = [claim for claim in reversed(claims) if claim.verdict == shown.verdict]
    shares = [f"{ours_of(claim)} at K = {claim.point[0]}" for claim in alike]
    of_all = _alike(claims)
    return SENTENCES[name].format(how=shown.fidelity, shares=" and ".join(shares), of_all=of_all)


def _alike(claims: Sequence[Claim]) -> str:
    """`7 of 10`: how many claims have the verdict that is shown."""
    same = [claim.verdict for claim in claims].count(_shown(claims).verdict)
    return f"{same} of {len(claims)}"


def _missed(by_exhibit: Mapping[str, Sequence[Claim]]) -> list[str]:
    """How many speeds are not reproduced, since the largest alone decide on a column."""
    words = [claim.verdict for name in SPEEDS for claim in by_exhibit[name]]
    missed = f"{words.count('not reproduced')} of {len(words)}"
    sentence = f"In Table 2, {missed} speeds disagree with every setting."
    return [sentence] if "not reproduced" in words else []


def _headline(shown: Mapping[str, str], sizes: str) -> str:
    """`Same model, 7 of 10 sizes, one of two speed-ups: that much of GPipe holds up.`, for one."""
    speeds = [shown.get(name) for name in SPEEDS]
    fast = speeds.count(HOLDS)
    held = {
        "same model": shown.get(IDENTICAL) == HOLDS,
        f"{sizes} sizes": shown.get(SIZES) == HOLDS,
        "both speed-ups": fast == 2,
        "one of two speed-ups": fast == 1,
        "small bubble": shown.get(BUBBLE) == HOLDS,
    }
    failed = {
        "The model changes with K.": shown.get(IDENTICAL) == FAILS,
        "Its models do not have the printed sizes.": shown.get(SIZES) == FAILS,
        "Its bubble is not “almost negligible”.": shown.get(BUBBLE) == FAILS,
        "Its models are not as fast as printed.": FAILS in speeds,
    }
    words, sentences = ([text for text, so in each.items() if so] for each in (held, failed))
    if words:
        sentences.insert(0, f"{', '.join(words).capitalize()}: that much of GPipe holds up.")
    return " ".join(sentences) or "Nothing here confirms or refutes GPipe yet."


def _where(results: Results, claims: Mapping[str, Sequence[Claim]]) -> str:
    """On what was measured, such as `two CPU cores and, for equal bits and memory, one GPU`."""
    measured = [run for run in results.runs if run.done and run.fidelity == "measured"]
    on_cpu = {run.machine: run.scale in ON_CPU for run in measured}
    count = {True: 0, False: 0}  # whether it is of cores -> how many one machine has
    for journal in results.journals:
        for each in journal.environments.values() if journal.place.machine in on_cpu else ():
            kind = on_cpu[journal.place.machine]
            count[kind] = max(count[kind], int(each.get("count", 1)))
    judged = {run.experiment for run in measured if run.scale not in ON_CPU} & {*claims}
    asked = [word for name, word in ON_ONE_GPU.items() if name in judged]
    use = f", for {' and '.join(asked)}," if asked and judged <= {*ON_ONE_GPU} else ""
    words = [_number(count[True], "CPU core")] * (count[True] > 0)
    words += [_number(count[False], "GPU")] * (count[False] > 0)
    text = f" and{use} ".join(words)
    return f"{text}; never on several accelerators" if text and count[False] < 2 else text


def _number(count: int, name: str) -> str:
    words = {1: "one", 2: "two", 4: "four", 8: "eight"}
    return f"{words.get(count, count)} {name}{'s' * (count > 1)}"


def _panels(by_exhibit: Mapping[str, Sequence[Claim]]) -> dict[str, Panel]:
    """Exhibit -> its panel. Speeds have one scale."""
    of_speeds = {
        name: _points(claim for claim in by_exhibit[name] if claim.point[1] == 32)
        for name in SPEEDS
    }
    top = _highest(chain.from_iterable(of_speeds.values()))
    step = next(step for step in (1, 2, 5, 10, 20, 50, top) if top / step <= 5)
    about = "speed over K = 2, M = 1"
    panels = {
        name: Panel(f"{name.partition(', ')[2]}, M = 32", about, points, TIMES, step, top)
        for name, points in of_speeds.items()
        if points
    }
    if points := _points(by_exhibit[BUBBLE]):
        top, limits = 10.0 * ceil(_highest(points) / 10), by_exhibit[BUBBLE][0].most
        title, about = f"Bubble, {AT}", "share of a step"
        panels[BUBBLE] = Panel(title, about, points, "%", 10, top, limits)
    return panels


def _highest(points: Iterable[Point]) -> float:
    return max((max(each.paper, each.most) for each in points), default=1.0)


def _points(claims: Iterable[Claim]) -> list[Point]:
    points = []
    for claim in sorted(claims, key=lambda claim: claim.point):
        ends = [[end for end in each if not isnan(end)] for each in claim.ours]
        if known := [each for each in ends if each]:
            first, values = known[0], [each[0] for each in known]
            K, M = claim.point
            paper = 100 * theory.bubble_over_total(K, M) if isnan(claim.paper) else claim.paper
            ours = first[0], min(first), max(first), min(values), max(values)
            points.append(Point(K, paper, *ours, claim.fidelity))
    return points


def rows(claims: Mapping[str, Sequence[Claim]]) -> list[Row]:
    by_exhibit = of_exhibits(claims)
    remarks = _remarks(by_exhibit)
    commands = {of.exhibit: f"repro run {name}" for name, found in claims.items() for of in found}

    def part(name: str) -> Part:
        return _part(by_exhibit[name], commands[name], *remarks.get(name, ("", "")))

    return [Row(question, about, [*map(part, names)]) for question, about, names in QUESTIONS]


def _part(claims: Sequence[Claim], command: str, beside: str, how: str) -> Part:
    """The last two are what is written in place of the other settings and of the claim's `why`."""
    claim = _shown(claims)
    is_one_of_several = len(claims) > 1 and claim in claims
    count = _alike(claims) if is_one_of_several else ""
    paper = OF_PAPER.get(claim.exhibit, "{}").format(paper_of(claim))
    if claim.verdict == "not tested here":
        # Trainings that decide a claim take a night.
        command += " --scale overnight" * claim.smaller
        reason = claim.doubt or claim.why or f"no result: `{command}`"
        return Part(claim.verdict, count, paper, "", reason, "")
    ours, bracket, ends = ours_of(claim).partition(" (")
    others = others_of(claim)
    settings = f"other settings {others}" if others else ""
    caveat = "".join(f"; {text}" for text in (settings, claim.beside) if text)
    how = "; ".join(filter(None, (claim.fidelity, how or claim.why)))
    return Part(claim.verdict, count, paper, ours, bracket + ends + beside + caveat, how)


def _remarks(by_exhibit: Mapping[str, Sequence[Claim]]) -> dict[str, tuple[str, str]]:
    """Exhibit -> what is written beside our number, and of how we know it; see `_part`."""
    large, *_, small = by_exhibit[BUBBLE]
    bubbles = f" at K = {large.point[0]}, {ours_of(small)} at K = {small.point[0]}"
    return {
        IDENTICAL: (" runs bit-identical to K = 1", ""),
        SIZES: (" parameters", ""),
        LARGEST: ("", "M is not printed"),
        BUBBLE: (bubbles, f"{large.why}; at K = {small.point[0]} {small.fidelity}"),
        LANGUAGES: (", largest minus smallest model", "only the sign compares"),
        IMAGES: ("", "scaling exponent b: the error falls as 1 / size^b"),
    }


def lines(claims: Mapping[str, Sequence[Claim]]) -> list[dict[str, str]]:
    """The rows as texts, a line for each part: for the terminal and the README."""
    return [
        {
            "question": f"{row.question} {row.about}" if part is row.parts[0] else "",
            "verdict": part.verdict + (f" ({part.count})" if part.count else ""),
            "paper": part.paper,
            "ours": part.ours + part.beside,
            "how we know": part.how,
        }
        for row in rows(claims)
        for part in row.parts
    ]
