"""Figure 3 (arXiv:1811.06965v5): gains over bilingual baselines by tier, and its claims."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import compared
from experiments.compared import Compared, Comparison, over
from experiments.figure3 import runs as plan
from experiments.figure3.runs import ABOUT, NAME, alone
from experiments.translation import PAPER_SIZES, SIZES, TOY
from repro.claims.claim import Evidence
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.statistics import mean_interval
from repro.paper.numbers import figure
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import estimated, framed
from repro.report.style import SOFT, dots, grid, series_colour
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_claims")
TIERS = ("high", "middle", "low")  # thirds of the languages, by their data
ALL = "all"
SIZE, TRANSFER, RICH = f"{NAME}/size", f"{NAME}/transfer", f"{NAME}/rich"  # claims
_BY_SIZE = [str(size) for size in SIZES]  # arms, small ones first
_SMALLEST = _BY_SIZE[0]
# What is compared -> the claim, and the weights in its sum over places of sizes, and over tiers.
_DEPTH = {plan.DEEP: 1, plan.WIDE: -1}
_SUMS: dict[str, tuple[str, dict[int, int], dict[str, int]]] = {
    "size: largest minus smallest": (SIZE, {-1: 1, 0: -1}, {ALL: 1}),
    "size: largest minus deep": ("", {-1: 1, plan.DEEP: -1}, {ALL: 1}),
    "transfer: gain of the largest over the baselines, low tier minus high tier": (
        TRANSFER,
        {-1: 1},
        {"low": 1, "high": -1},
    ),
    "depth: deep minus wide, low tier": ("figure3/depth", _DEPTH, {"low": 1}),
    "depth: deep minus wide, high tier": (RICH, _DEPTH, {"high": 1}),
    "returns: smallest to deep minus deep to largest": (
        "figure3/returns",
        {plan.DEEP: 2, 0: -1, -1: -1},
        {ALL: 1},
    ),
    "who gains from size: largest minus smallest, high tier minus low tier": (
        "figure3/who",
        {-1: 1, 0: -1},
        {"high": 1, "low": -1},
    ),
}


def weighted(sizes: Mapping[int, int], tiers: Mapping[str, int], by: Frame) -> float:
    """A sum over a frame like that of `in_tiers`."""
    terms = product(sizes.items(), tiers.items())
    return float(sum(a * b * by[tier].iloc[size] for (size, a), (tier, b) in terms))


def is_over_baselines(sizes: Mapping[int, int]) -> bool:
    """Whether a sum needs them: a difference of two sizes has each baseline in both."""
    return sum(sizes.values()) != 0


def difference(sizes: Mapping[int, int], tiers: Mapping[str, int], quality: Frame) -> float:
    by = gains(quality) if is_over_baselines(sizes) else in_tiers(quality)
    return weighted(sizes, tiers, by)


def in_tiers(quality: Frame) -> Frame:
    """Of one seed: a line for each size, a column for each tier and for all languages."""
    found = quality.reindex(_BY_SIZE)[[*TOY]]
    tiers = found.T.groupby([tier_of(language) for language in TOY]).mean().T
    return tiers.assign(**{ALL: found.mean(axis=1)})


def gains(quality: Frame) -> Frame:
    """The same, over the baseline of each language."""
    own = pd.Series({language: quality.loc[alone(language), language] for language in TOY})
    return in_tiers(quality[[*TOY]] - own)


def tier_of(language: str) -> str:
    return TIERS[TOY.index(language) * len(TIERS) // len(TOY)]


def comparisons(_runs: Frame) -> list[Comparison]:
    found = []
    for text, (claim, sizes, tiers) in _SUMS.items():
        arms = [_BY_SIZE[size] for size in sizes]
        arms += map(alone, TOY) if is_over_baselines(sizes) else []
        of_seed = partial(difference, sizes, tiers)
        # Alike is held against a margin of BLEU, which says nothing of losses.
        found.append(Comparison(text, arms, of_seed, claim, by_loss=claim != RICH))

    def of_common_words(quality: Frame) -> float:
        poor = [language for language in TOY if tier_of(language) == "low"]
        return (quality.loc[_SMALLEST, poor] - quality.loc[plan.UNRELATED, poor]).mean()

    text = "common words: smallest over the same without them, low tier"
    return [*found, Comparison(text, [_SMALLEST, plan.UNRELATED], of_common_words), *controls()]


def controls() -> list[Comparison]:
    return [
        over(plan.ORDER, _SMALLEST, control="nothing"),
        over(_SMALLEST, plan.HALF, control="something"),
    ]


def tables(results: Results) -> list[Table]:
    frame = compared.arms_frame(results, NAME)
    printed = printed_gains()
    quoted = {claim: weighted(sizes, of, printed) for claim, sizes, of in _SUMS.values() if claim}
    found = comparisons_of(results)
    return [
        compared.comparisons_table(results, f"{NAME}_claims", found, ABOUT, "BLEU", quoted),
        compared.arms_table(
            results, f"{NAME}_arms", frame, ABOUT, updates="steps", parameters="parameters"
        ),
        tiers(results, frame),
    ]


def comparisons_of(results: Results) -> dict[str, list[Compared]]:
    return compared.of_places(results, NAME, plan.arms, comparisons, "bleu")


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> the mean difference in BLEU over seeds."""
    return compared.claims_of(comparisons_of(results))


def printed_points() -> Frame:
    return pd.DataFrame([vars(point) for point in figure(NAME)])


def printed_gains() -> Frame:
    """Mean gain of the paper's points by size and tier, a third of its six groups of languages."""
    points = printed_points()
    third = points["x"].rank(method="dense").sub(1) // 2
    points["tier"] = [TIERS[int(place)] for place in third]
    found = points.pivot_table(index="series", columns="tier", values="y")
    found = found.loc[[str(size).replace(" ", "") for size in PAPER_SIZES]]
    return found.assign(**{ALL: found.mean(axis=1)})


def gains_of_seeds(frame: Frame) -> dict[str, list[Frame]]:
    """Place -> the gains in BLEU of each seed that has all arms."""
    return {
        where: seeds
        for where, runs in frame[~frame["tuning"]].groupby("where", sort=False)
        if (seeds := [*map(gains, compared.qualities(runs, "bleu", [*_BY_SIZE, *map(alone, TOY)]))])
    }


def tiers(results: Results, frame: Frame) -> Table:
    """Gain over the baselines for each tier and size; the paper's sizes are other ones."""
    lines = []
    for where, seeds in gains_of_seeds(frame).items():
        for tier in TIERS:
            for size in _BY_SIZE:
                values = [float(seed.loc[size, tier]) for seed in seeds]
                line: dict[str, Any] = {"where": where, "tier": tier, "size": size}
                lines.append(line | estimated("measured gain", mean_interval(values)))
    return framed(results, NAME, pd.DataFrame(lines), ABOUT)


def figures(results: Results) -> Iterator[Picture]:
    frame = compared.arms_frame(results, NAME)
    panels = {"all languages": _BY_SIZE, "baselines": [*map(alone, TOY)]}
    yield "curves", compared.curves(frame, panels), {}
    if seeds := max(gains_of_seeds(frame).values(), key=len, default=[]):
        yield "gains", _drawn(seeds, quoting=beside_paper(results, NAME)), {}


def _drawn(seeds: Sequence[Frame], *, quoting: bool) -> Figure:
    page, (panels,) = grid(1, 2 if quoting else 1, 3.4)
    mean: Frame = sum(seeds[1:], seeds[0]) / len(seeds)
    of_tiers = {size: (range(len(TIERS)), mean.loc[size, [*TIERS]]) for size in mean.index}
    _draw(panels[0], "measured", of_tiers)
    panels[0].set(title="measured, toy languages", ylabel="BLEU over bilingual")
    panels[0].set_xticks(range(len(TIERS)), [f"{tier} tier" for tier in TIERS])
    if quoting:
        theirs = {
            str(series): (of_size["x"] + 1, of_size["y"])
            for series, of_size in printed_points().groupby("series", sort=False)
        }
        _draw(panels[1], "quoted", theirs)
        panels[1].set(title="quoted", xlabel="language, by decreasing data")
    return page


def _draw(axes: Axes, fidelity: str, lines: Mapping[str, Any]) -> None:
    for number, (size, (xs, ys)) in enumerate(lines.items()):
        colour = series_colour(2 ** (1.2 * number))
        axes.plot(xs, ys, **dots(fidelity, linestyle="-", markersize=4.5, label=size, color=colour))
    axes.axhline(0, color=SOFT, linewidth=0.9)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.4 * (high - low))
    axes.legend(loc="upper left", handlelength=1.2, ncols=2)
