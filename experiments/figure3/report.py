"""Figure 3 (arXiv:1811.06965v5): gains over bilingual baselines, and the paper's claims."""

from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from repro.experiments import compared
from repro.experiments.compared import Gain, qualities
from repro.experiments.figure3.runs import ABOUT, NAME, alone
from repro.experiments.learned import SIZES, TOY
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.statistics import mean_interval
from repro.harness.text import digits
from repro.paper.numbers import figure
from repro.report.claim import Claim
from repro.report.figures import Picture
from repro.report.framed import error_bars, estimated, framed, with_interval
from repro.report.style import SOFT, dots, grid
from repro.report.table import Table

EXHIBIT = "Figure 3, languages"
TIERS, ALL = ("high", "middle", "low"), "all"  # thirds of the languages, by their data
SIZED = [str(size) for size in SIZES]  # arms, small ones first
ARMS = [*SIZED, *map(alone, TOY)]
WIDE, DEEP = 1, 2  # places among the sizes of the two with as many parameters
_DEPTH = {DEEP: 1, WIDE: -1}
RICH = "depth: deep minus wide, high tier, alike"
# What is claimed -> the weights in its sum over places of sizes, and over tiers. It is above 0, but
# for `RICH`, which the paper calls alike: within half a point of BLEU, whatever the loss.
SUMS: dict[str, tuple[dict[int, int], dict[str, int]]] = {
    "size: largest minus smallest": ({-1: 1, 0: -1}, {ALL: 1}),
    "transfer: largest over bilingual, low tier minus high tier": ({-1: 1}, {"low": 1, "high": -1}),
    "depth: deep minus wide, low tier": (_DEPTH, {"low": 1}),
    RICH: (_DEPTH, {"high": 1}),
    "returns: smallest to deep minus deep to largest": ({DEEP: 2, 0: -1, -1: -1}, {ALL: 1}),
    "who gains: largest minus smallest, high tier minus low tier": (
        {-1: 1, 0: -1},
        {"high": 1, "low": -1},
    ),
}
# Lines of the figure: of the paper's smallest, wide, deep, larger and largest size, and of ours.
_LINES = (":", "-.", "--", (0, (8, 1)), "-")
_OURS = (":", "-.", "--", "-")


def gains(quality: Frame) -> Frame:
    """Of one seed: each size's quality for each language over that of a model of its own."""
    return quality.loc[SIZED] - [quality.loc[alone(name), name] for name in quality.columns]


def in_tiers(found: Frame) -> Frame:
    """Of such gains: a line for each size, a column for each tier and for all languages."""
    tiers = found.T.groupby([TIERS[TOY.index(name) * len(TIERS) // len(TOY)] for name in found])
    return tiers.mean().T.assign(**{ALL: found.mean(axis=1)})


def weighted(what: str, by: Frame) -> float:
    """A sum of `SUMS` over a frame like that of `in_tiers`."""
    terms = product(*(weights.items() for weights in SUMS[what]))
    return float(sum(a * b * by[tier].iloc[size] for (size, a), (tier, b) in terms))


@lru_cache(maxsize=len(SUMS))
def gain_of(results: Results, what: str) -> Gain:
    def difference(quality: Frame) -> float:
        return weighted(what, in_tiers(gains(quality)))

    return compared.compared(compared.trained(results, NAME), "bleu", ARMS, difference)


def tables(results: Results) -> list[Table]:
    lines = []
    for judged in claims(results):
        found = gain_of(results, judged.what)
        if found.seeds:
            line: dict[str, Any] = {"claim": judged.what, "seeds": found.seeds}
            line |= estimated("BLEU", found.quality) | estimated("gain in loss", found.loss)
            paper = weighted(judged.what, printed_gains())
            lines.append(line | {"BLEU in the paper's picture": paper, "verdict": judged.verdict})
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def claims(results: Results) -> Iterator[Claim]:
    runs = compared.trained(results, NAME)
    controls = compared.failing(compared.controls(runs, SIZED[0]))
    for what in SUMS:
        alike = 0.5 if what == RICH else None
        found, paper = gain_of(results, what), digits(weighted(what, printed_gains()))
        says = f"{paper} BLEU off its picture"
        yield compared.claim(EXHIBIT, what, found, controls, unit="BLEU", says=says, alike=alike)


def printed_points() -> dict[str, Frame]:
    """The paper's sizes, each with its points."""
    points = pd.DataFrame([vars(point) for point in figure(NAME)])
    by_size = points.groupby("series", sort=False)
    return {str(size).replace(",", ", "): of_size for size, of_size in by_size}


@cache
def printed_gains() -> Frame:
    """Like `in_tiers`, of the paper: a tier is a third of its six groups of languages."""
    points = printed_points()
    found = pd.DataFrame([[*of_size["y"]] for of_size in points.values()], index=[*points])
    tiers = {tier: found.iloc[:, 2 * n : 2 * n + 2].mean(axis=1) for n, tier in enumerate(TIERS)}
    return pd.DataFrame({**tiers, ALL: found.mean(axis=1)})


def figures(results: Results) -> Iterator[Picture]:
    runs = compared.trained(results, NAME)
    seeds = [*map(gains, qualities(runs, "bleu", ARMS))]
    if seeds:
        yield "gains", _drawn(seeds), {}


def _drawn(seeds: Sequence[Frame]) -> Figure:
    page, (panels,) = grid(1, 2, 3.6, legend=False)
    for number, (size, line) in enumerate(zip(SIZED, _OURS, strict=True)):
        found = [mean_interval([seed.loc[size, name] for seed in seeds]) for name in TOY]
        points = with_interval(pd.DataFrame(index=range(len(TOY))), "y", found)
        # Beside each other, so that no interval covers another.
        xs, look = points.index + 0.08 * (number - 1.5), _look("measured", size, line)
        panels[0].errorbar(xs, points["y"], error_bars(points, "y"), capsize=2, **look)
    panels[0].set_xticks(range(len(TOY)), [name.removeprefix("toy:") for name in TOY])
    panels[0].set(title="measured: toy languages", ylabel="BLEU over bilingual")
    panels[1].sharey(panels[0])
    for line, (size, points) in zip(_LINES, printed_points().items(), strict=True):
        panels[1].plot(points["x"] + 1, points["y"], **_look("quoted", size, line))
    panels[1].set(title="quoted: the paper's 102 languages")
    for axes in panels:
        axes.axhline(0, color=SOFT, linewidth=0.9)
        axes.set_xlabel("language, by decreasing data")
        axes.legend(loc="upper left", handlelength=3.2)
    return page


def _look(fidelity: str, size: str, line: Any) -> dict[str, Any]:
    return dots(fidelity, linestyle=line, markersize=4.0, linewidth=1.2, label=size)
