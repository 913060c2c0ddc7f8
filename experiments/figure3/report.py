"""Figure 3 (arXiv:1811.06965v5): gains over bilingual baselines by tier, and three claims."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figure3.languages import TIERS, Trained, printed_gain, trained
from experiments.figure3.runs import DEEP, NAME, WIDE
from experiments.learned import parameters
from experiments.translation import PAPER_SIZES, Size
from repro.claims.all_claims import verdict_on
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.harness.statistics import mean_interval
from repro.paper import figure
from repro.report.compare import beside_paper, rows_of
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, amount, declared, estimate, place_column, plain, spread
from repro.report.style import MARKERS, SOFT, grid, series_colour
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_claims")
SIZE = "size: largest minus smallest"
TRANSFER = "transfer: gain in the low tier minus the high tier"
DEPTH = "depth: deep minus wide, {} tier"


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [claims(results), tiers(results), languages(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[f"{NAME}_claims"]
    size, transfer, depth = (
        table.number("measured mean", **{"difference in BLEU": sentence})
        for sentence in (SIZE, TRANSFER, DEPTH.format("low"))
    )
    return (
        f"With toy languages BLEU changes by {size} with size, by {transfer} with transfer to "
        f"languages with little data, and by {depth} with depth there."
    )


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about Figure 3, and our differences for it.

    Attributes:
        where: scale and machine.
        differences: in BLEU, one for each language and seed.
        printed: the paper's difference; a mean over its points.
        id: of the claim that it is held against; empty where no rule was fixed.
    """

    where: str
    sentence: str
    differences: list[float]
    printed: float
    runs: list[Run]
    id: str = ""

    @property
    def evidence(self) -> Evidence:
        mean, low, high = mean_interval(self.differences)
        return Evidence(mean, "measured", tuple(run.id for run in self.runs), low, high)


def claims(results: Results) -> Table:
    lines = [claim for place in trained(results) for claim in claims_of(place)]
    columns: list[Column[Claim]] = [
        *place_column(lines, lambda claim: claim.where),
        Column("difference in BLEU", lambda claim: plain(claim.sentence), csv="difference"),
        Column("n", lambda claim: plain(len(claim.differences))),
        spread(("measured", "mean"), lambda claim: estimate(mean_interval(claim.differences))),
    ]
    if beside_paper(results, NAME):
        columns.append(Column(("quoted", "mean, digitised"), lambda claim: amount(claim.printed)))
        columns.append(Column("verdict", _verdict))
    note = (
        "Mean difference in BLEU with a bootstrap 95 % interval over n pairs of a language and a "
        "seed; the languages of a seed share one model and its test sentences, so only three "
        "values are independent and the interval is too narrow. Tiers are thirds of the languages "
        "by training pairs, and nine toy languages stand for 102, so they cannot show the paper's "
        "gains in BLEU."
    )
    title = "Three claims about multilingual models"
    return declared(f"{NAME}_claims", title, note, lines, columns, NAME)


def claims_of(place: Trained) -> list[Claim]:
    by_seed = [*place.multilingual.values(), *place.bilingual.values()]
    runs = [run for of_seed in by_seed for run in of_seed.values()]
    small, large = PAPER_SIZES[0], PAPER_SIZES[-1]
    deep, wide = PAPER_SIZES[DEEP], PAPER_SIZES[WIDE]
    by_size = fmean(printed_gain(large, tier) - printed_gain(small, tier) for tier in TIERS)
    transferred = printed_gain(large, "low") - printed_gain(large, "high")
    depth = {tier: printed_gain(deep, tier) - printed_gain(wide, tier) for tier in TIERS}
    return [
        Claim(place.where, SIZE, place.gain_of_size(), by_size, runs, "figure3/size"),
        Claim(
            place.where,
            TRANSFER,
            place.gain_of_transfer(),
            transferred,
            runs,
            "figure3/transfer",
        ),
        *(
            Claim(
                place.where,
                DEPTH.format(tier),
                place.gain_of_depth(tier),
                depth[tier],
                runs,
                "figure3/depth" if tier == "low" else "",
            )
            for tier in ("low", "high")
        ),
    ]


def _verdict(claim: Claim) -> Cell:
    return plain(verdict_on(claim.id, claim.evidence)) if claim.id else Cell(text="no rule")


@dataclass(frozen=True)
class Gain:
    """A size in a tier.

    Attributes:
        printed: the paper's size at the same place among the five; None at other numbers of sizes.
    """

    place: Trained
    tier: str
    size: Size
    printed: Size | None

    @property
    def runs(self) -> list[Run]:
        return list(self.place.multilingual[self.size].values())

    @property
    def gains(self) -> list[float]:
        """BLEU over the baseline, of every language of the tier and every seed."""
        return self.place.gains(self.size, self.place.tier(self.tier))


def tiers(results: Results) -> Table:
    """Gain over the baselines for each tier and size."""
    lines = []
    for place in trained(results):
        for tier in TIERS:
            for i, size in enumerate(place.sizes):
                printed = PAPER_SIZES[i] if len(place.sizes) == len(PAPER_SIZES) else None
                lines.append(Gain(place, tier, size, printed))
    columns: list[Column[Gain]] = [
        *place_column(lines, lambda gain: gain.place.where),
        Column("tier", lambda gain: plain(gain.tier)),
        Column("size", lambda gain: plain(gain.size)),
        Column("parameters", _millions),
        Column("n", lambda gain: plain(len(gain.gains))),
        spread(("measured", "gain"), lambda gain: estimate(mean_interval(gain.gains))),
    ]
    if beside_paper(results, NAME):
        columns.append(Column(("quoted", "size"), lambda gain: plain(gain.printed or "")))
        columns.append(Column(("quoted", "gain, digitised"), _printed))
    note = (
        "BLEU of a multilingual model minus that of the language's own model: mean and bootstrap "
        "95 % interval over n pairs of a language and a seed, too narrow as the languages of a "
        "seed share a model. Nine toy languages stand for 102, so they cannot show the paper's "
        "gains in BLEU."
    )
    title = "Gain over bilingual baselines for each tier of languages"
    return declared(NAME, title, note, lines, columns, NAME)


def _millions(gain: Gain) -> Cell:
    counted = parameters(gain.runs[0])
    return Cell(counted, f"{counted / 1e6:.2f}M")


def _printed(gain: Gain) -> Cell:
    return amount(printed_gain(gain.printed, gain.tier)) if gain.printed else Cell()


@dataclass(frozen=True)
class OneLanguage:
    place: Trained
    language: str

    @property
    def baselines(self) -> list[Run]:
        return list(self.place.bilingual[self.language].values())


def languages(results: Results) -> Table:
    """BLEU of every language: its own model, the smallest and the largest multilingual one."""
    lines = [
        OneLanguage(place, language) for place in trained(results) for language in place.languages
    ]

    def tier_of(line: OneLanguage) -> Cell:
        return plain(next(tier for tier in TIERS if line.language in line.place.tier(tier)))

    def multilingual(line: OneLanguage, which: int) -> Cell:
        return _mean(line.place.bleu(line.place.sizes[which], line.language))

    columns: list[Column[OneLanguage]] = [
        *place_column(lines, lambda line: line.place.where),
        Column("language", lambda line: plain(line.language)),
        Column("training pairs", lambda line: plain(int(line.baselines[0].labels["pairs"]))),
        Column("tier", tier_of),
        Column("seeds", lambda line: plain(len(line.baselines))),
        Column("own model", lambda line: _mean(line.place.baseline(line.language))),
        Column("smallest", lambda line: multilingual(line, 0)),
        Column("largest", lambda line: multilingual(line, -1)),
    ]
    note = (
        "BLEU, measured, mean over seeds: of the language's own model, and of the smallest and the "
        "largest multilingual model. There is no interval, because the seeds of one language are "
        "fewer than five."
    )
    title = "Every language: its own model and the multilingual ones"
    return declared(f"{NAME}_languages", title, note, lines, columns, NAME)


def _mean(by_seed: dict[int, float]) -> Cell:
    return amount(fmean(by_seed.values()) if by_seed else nan, 1)


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    caption = (
        "Gain over the bilingual baselines against languages by decreasing data, a line for each "
        "size: measured with toy languages (mean over seeds), and read off the paper's picture."
    )
    yield "gains", gains(results), caption


def gains(results: Results) -> Figure | None:
    """Ours, and beside it the paper's; of several places the last one is drawn."""
    places = trained(results)
    if not places:
        return None
    place, quoting = places[-1], beside_paper(results, NAME)
    drawn, (panels,) = grid(1, 2 if quoting else 1, 3.4)
    ours = panels[0]
    for number, size in enumerate(place.sizes):
        means = [_mean_gain(place, size, language) for language in place.languages]
        ours.plot(
            range(1, len(means) + 1),
            means,
            MARKERS["measured"],
            linestyle="-",
            color=series_colour(2 ** (1.2 * number)),
            markersize=5,
            label=str(size),
        )
    ours.set(
        title="measured, toy languages",
        xlabel="language, by decreasing data",
        ylabel="BLEU over bilingual",
    )
    _finish(ours)
    if quoting:
        for number, size in enumerate(PAPER_SIZES):
            points = [p for p in figure("figure3") if p.series == f"T({size.L},{size.H},{size.A})"]
            panels[1].plot(
                [p.x + 1 for p in points],
                [p.y for p in points],
                MARKERS["quoted"],
                linestyle="-",
                color=series_colour(2 ** (1.2 * number)),
                markersize=4,
                label=str(size),
            )
        panels[1].set(title="quoted", xlabel="language, by decreasing data")
        _finish(panels[1])
    return drawn


def _mean_gain(place: Trained, size: Size, language: str) -> float:
    values = place.gains(size, [language])
    return fmean(values) if values else nan


def _finish(axes: Axes) -> None:
    """A line at 0, and a legend above all points."""
    axes.axhline(0, color=SOFT, linewidth=0.9)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.4 * (high - low))
    axes.legend(loc="upper left", handlelength=1.2, ncols=2)
