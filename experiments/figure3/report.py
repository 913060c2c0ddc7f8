"""Figure 3 (arXiv:1811.06965v5): gains over bilingual baselines by tier, and three claims."""

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figure3.runs import ABOUT, BILINGUAL, DEEP, NAME, WIDE
from experiments.translation import PAPER_SIZES, Size, size_of
from repro.claims.all_claims import verdict_on
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results, Run
from repro.harness.spec import RunSpec
from repro.harness.statistics import mean_interval
from repro.paper.numbers import figure
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.framed import estimated, framed
from repro.report.style import SOFT, dots, grid, series_colour
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_claims")
TIERS = ("high", "middle", "low")
SIZE = "size: largest minus smallest"
TRANSFER = "transfer: gain in the low tier minus the high tier"
DEPTH = "depth: deep minus wide, {} tier"
RETURNS = "returns: smallest to deep minus deep to largest"
# The claim that a difference is held against.
CLAIMS = {
    SIZE: "figure3/size",
    TRANSFER: "figure3/transfer",
    DEPTH.format("low"): "figure3/depth",
    DEPTH.format("high"): "figure3/rich",
    RETURNS: "figure3/returns",
}


def tables(results: Results) -> list[Table]:
    return [claims(results), tiers(results)]


class Place(NamedTuple):
    """The finished trainings of one place.

    Attributes:
        bleu: a line for each language and seed: `tier`, a third of the languages by their data,
            `rank` in the tier, BLEU of its `own` model, and a column for each size.
    """

    where: str
    multilingual: Frame  # models of all languages by their size, small ones first
    bilingual: Frame  # models of one language by this language, the one with most data first
    bleu: Frame

    @property
    def sizes(self) -> list[str]:
        return list(self.multilingual.index.unique())

    @property
    def gains(self) -> Frame:
        return self.bleu[self.sizes].sub(self.bleu["own"], axis=0)


def places(results: Results) -> Iterator[Place]:
    frame = runs_frame(results, NAME, done=True)
    frame["pairs"] = [int(labels.get("pairs", 0)) for labels in frame["labels"]]
    alone = frame["group"].str.startswith(BILINGUAL)
    frame["of"] = [_of(spec) for spec in frame["spec"]]
    for where, runs in frame.groupby("where", sort=False):
        multilingual = runs[~alone].set_index("of")
        # By size, in the order of the plan.
        multilingual = multilingual.loc[multilingual.index.unique()]
        bilingual = runs[alone].set_index("of").sort_values("pairs", ascending=False, kind="stable")
        if len(multilingual) and len(bilingual):
            yield Place(str(where), multilingual, bilingual, bleu_of(multilingual, bilingual))


def _of(spec: RunSpec) -> str:
    assert spec.training is not None
    return spec.training.data[0] if len(spec.training.data) == 1 else str(size_of(spec))


def bleu_of(multilingual: Frame, bilingual: Frame) -> Frame:
    bleu = bilingual[["seed", "metrics.bleu"]].rename_axis("language").reset_index()
    bleu = bleu.rename(columns={"metrics.bleu": "own"})
    places = [*zip(bleu["language"], bleu["seed"], strict=True)]
    for size, runs in multilingual.groupby(level=0, sort=False):
        by_seed = runs.set_index("seed")
        bleu[size] = [by_seed[f"metrics.bleu {name}"].get(seed, nan) for name, seed in places]
    languages = pd.DataFrame({"language": bilingual.index.unique()})
    languages["tier"] = [TIERS[i * len(TIERS) // len(languages)] for i in languages.index]
    languages["rank"] = languages.groupby("tier").cumcount()
    return bleu.merge(languages, on="language")


def sentences(gains: Frame) -> dict[str, float]:
    """What each sentence of the paper compares, from gains by size, small ones first, and tier."""
    small, large = gains.iloc[0], gains.iloc[-1]
    found = {SIZE: (large - small).mean(), TRANSFER: large["low"] - large["high"]}
    if len(gains) > DEEP:
        deep, wide = gains.iloc[DEEP], gains.iloc[WIDE]
        found |= {DEPTH.format(tier): (deep - wide)[tier] for tier in ("low", "high")}
        found[RETURNS] = (deep - small - (large - deep)).mean()
    return found


def differences(place: Place) -> Frame:
    """A line for each seed, a column for each sentence.

    The languages of a seed are not independent, since one model has them all.
    """
    gains = place.gains.assign(tier=place.bleu["tier"]).groupby(place.bleu["seed"])
    of_seeds = [seed.groupby("tier")[place.sizes].mean().T for _, seed in gains]
    return pd.DataFrame([sentences(of_seed) for of_seed in of_seeds])


def printed_gains() -> Frame:
    """Mean gain of the paper's points by size and tier, a third of its six groups of languages."""
    points = pd.DataFrame([vars(point) for point in figure("figure3")])
    third = points["x"].rank(method="dense").sub(1) // 2
    points["tier"] = [TIERS[int(place)] for place in third]
    gains = points.pivot_table(index="series", columns="tier", values="y")
    return gains.loc[[_series(size) for size in PAPER_SIZES]]


def _series(size: Size) -> str:
    return str(size).replace(" ", "")


def claims(results: Results) -> Table:
    lines = []
    theirs = sentences(printed_gains())
    for place in places(results):
        ours = _evidence(place)
        for sentence, values in differences(place).items():
            line = {"where": place.where, "difference": sentence, "seeds": values.count()}
            line |= estimated("measured mean", mean_interval([*values.dropna()]))
            line["quoted mean, digitised"] = theirs[sentence]
            line["verdict"] = verdict_on(CLAIMS[sentence], ours[CLAIMS[sentence]])
            lines.append(line)
    headings = {"difference": "difference in BLEU"}
    return framed(results, f"{NAME}_claims", pd.DataFrame(lines), ABOUT, headings=headings)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> the mean difference in BLEU over seeds, of each over its languages."""
    for place in places(results):
        yield from _evidence(place).items()


def _evidence(place: Place) -> dict[str, Evidence]:
    by_language = place.bilingual.loc[place.bilingual.index.unique()]
    runs = (*place.multilingual["id"], *by_language["id"])
    found = differences(place)
    return {
        CLAIMS[sentence]: Evidence(mean, "measured", runs, low, high)
        for sentence, values in found.items()
        for mean, low, high in [mean_interval([*values.dropna()])]
    }


def tiers(results: Results) -> Table:
    """Gain over the baselines for each tier and size, beside the paper's of the same rank."""
    lines, theirs = [], printed_gains()
    for place in places(results):
        as_many = len(place.sizes) == len(PAPER_SIZES)
        for tier in TIERS:
            gains = place.gains[place.bleu["tier"] == tier]
            for size, printed_size in zip(place.sizes, PAPER_SIZES, strict=False):
                run = place.multilingual.loc[[size]].iloc[0]
                values = list(gains[size].dropna())
                line: dict[str, Any] = {"where": place.where, "tier": tier}
                line |= {"size": size_of(run["spec"]), "parameters": float(run["parameters"])}
                line |= {"n": len(values)} | estimated("measured gain", mean_interval(values))
                if as_many:
                    line["quoted size"] = printed_size
                    line["quoted gain, digitised"] = theirs.loc[_series(printed_size), tier]
                lines.append(line)
    forms = {"parameters": lambda count: f"{count / 1e6:.2f}M"}
    return framed(results, NAME, pd.DataFrame(lines), ABOUT, forms=forms)


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    every = list(places(results))
    if not every:
        return
    place, quoting = every[-1], beside_paper(results, NAME)
    page, (panels,) = grid(1, 2 if quoting else 1, 3.4)
    means = place.gains.groupby(place.bleu["language"], sort=False).mean()
    ours = {size: (range(1, len(means) + 1), means[size]) for size in place.sizes}
    _draw(panels[0], "measured", ours)
    panels[0].set(title="measured, toy languages", ylabel="BLEU over bilingual")
    if quoting:
        theirs = {}
        for size in PAPER_SIZES:
            points = [point for point in figure("figure3") if point.series == _series(size)]
            theirs[str(size)] = ([p.x + 1 for p in points], [p.y for p in points])
        _draw(panels[1], "quoted", theirs)
        panels[1].set(title="quoted")
    yield "gains", page, ABOUT.caption("gains")


def _draw(axes: Axes, fidelity: str, lines: Mapping[str, Any]) -> None:
    for number, (size, (xs, ys)) in enumerate(lines.items()):
        colour = series_colour(2 ** (1.2 * number))
        axes.plot(xs, ys, **dots(fidelity, linestyle="-", markersize=4.5, label=size, color=colour))
    axes.axhline(0, color=SOFT, linewidth=0.9)
    low, high = axes.get_ylim()
    axes.set(ylim=(low, high + 0.4 * (high - low)), xlabel="language, by decreasing data")
    axes.legend(loc="upper left", handlelength=1.2, ncols=2)
