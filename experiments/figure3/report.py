"""Figure 3 (arXiv:1811.06965v5): gains over bilingual baselines by tier, and its claims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.compared import (
    Compared,
    Comparison,
    arms_frame,
    arms_table,
    claims_of,
    comparisons_table,
    curves,
    of_places,
    over,
)
from experiments.figure3 import runs as plan
from experiments.figure3.runs import ABOUT, NAME, TIERS, alone, tier_of
from experiments.translation import PAPER_SIZES, SIZES, TOY
from repro.claims.claim import Evidence
from repro.harness.frame import Frame
from repro.harness.results import Results, Run
from repro.harness.statistics import mean_interval
from repro.paper.numbers import figure
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.framed import estimated, framed
from repro.report.style import SOFT, dots, grid, series_colour
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_claims")
ALL = "all"
_SMALLEST = str(SIZES[0])
# Claim -> its words, and the number that it is about, of gains by size (small ones first) and tier.
_SENTENCES: dict[str, tuple[str, Callable[[Frame], float]]] = {
    "figure3/size": (
        "size: largest minus smallest",
        lambda gain: gain[ALL].iloc[-1] - gain[ALL].iloc[0],
    ),
    "figure3/transfer": (
        "transfer: gain of the largest over the baselines, low tier minus high tier",
        lambda gain: gain["low"].iloc[-1] - gain["high"].iloc[-1],
    ),
    "figure3/depth": (
        "depth: deep minus wide, low tier",
        lambda gain: gain["low"].iloc[plan.DEEP] - gain["low"].iloc[plan.WIDE],
    ),
    "figure3/rich": (
        "depth: deep minus wide, high tier",
        lambda gain: gain["high"].iloc[plan.DEEP] - gain["high"].iloc[plan.WIDE],
    ),
    "figure3/returns": (
        "returns: smallest to deep minus deep to largest",
        lambda gain: 2 * gain[ALL].iloc[plan.DEEP] - gain[ALL].iloc[0] - gain[ALL].iloc[-1],
    ),
    "figure3/who": (
        "who gains from size: largest minus smallest, high tier minus low tier",
        lambda gain: (gain["high"] - gain["low"]).iloc[-1] - (gain["high"] - gain["low"]).iloc[0],
    ),
}


def gains(quality: Frame) -> Frame:
    """Over the baselines, of one seed: a line for each size, a column for each tier and for all."""
    own = pd.Series({language: quality.loc[alone(language), language] for language in TOY})
    found = quality.loc[[str(size) for size in SIZES], [*TOY]] - own
    tiers = found.T.groupby([tier_of(language) for language in TOY]).mean().T
    return tiers.assign(**{ALL: found.mean(axis=1)})


def comparisons(_runs: Frame) -> list[Comparison]:
    every = [*map(str, SIZES), *map(alone, TOY)]
    found = [
        # Alike is held against a margin of BLEU, which says nothing of losses.
        Comparison(
            text,
            every,
            lambda quality, of=of: of(gains(quality)),
            claim,
            by_loss=claim != "figure3/rich",
        )
        for claim, (text, of) in _SENTENCES.items()
    ]

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
    frame = arms_frame(results, NAME)
    if frame.empty:
        return []
    printed = printed_gains()
    quoted = {claim: float(sentence(printed)) for claim, (_, sentence) in _SENTENCES.items()}
    found = compared(results)
    return [
        comparisons_table(results, f"{NAME}_claims", found, ABOUT, "BLEU", quoted),
        arms_table(results, f"{NAME}_arms", frame, ABOUT, updates="steps", parameters="parameters"),
        tiers(results, frame),
    ]


def compared(results: Results) -> dict[str, list[Compared]]:
    return of_places(results, NAME, comparisons, "bleu")


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> the mean difference in BLEU over seeds."""
    return claims_of(compared(results))


def printed_gains() -> Frame:
    """Mean gain of the paper's points by size and tier, a third of its six groups of languages."""
    points = pd.DataFrame([vars(point) for point in figure(NAME)])
    third = points["x"].rank(method="dense").sub(1) // 2
    points["tier"] = [TIERS[int(place)] for place in third]
    found = points.pivot_table(index="series", columns="tier", values="y")
    found = found.loc[[str(size).replace(" ", "") for size in PAPER_SIZES]]
    return found.assign(**{ALL: found.mean(axis=1)})


def gains_of_seeds(frame: Frame) -> dict[str, list[Frame]]:
    """Place -> the gains in BLEU of each seed that has all arms."""
    found: dict[str, list[Frame]] = {}
    columns = {f"metrics.bleu {language}": language for language in TOY}
    needed = {*map(str, SIZES), *map(alone, TOY)}
    for (where, _), runs in frame[~frame["tuning"]].groupby(["where", "seed"], sort=False):
        quality = runs.set_index("arm").reindex(columns=[*columns]).rename(columns=columns)
        if needed <= {*quality.index}:
            found.setdefault(where, []).append(gains(quality))
    return found


def tiers(results: Results, frame: Frame) -> Table:
    """Gain over the baselines for each tier and size; the paper's sizes are other ones."""
    lines = []
    for where, seeds in gains_of_seeds(frame).items():
        for tier in TIERS:
            for size in map(str, SIZES):
                values = [float(seed.loc[size, tier]) for seed in seeds]
                line: dict[str, Any] = {"where": where, "tier": tier, "size": size}
                lines.append(line | estimated("measured gain", mean_interval(values)))
    return framed(results, NAME, pd.DataFrame(lines), ABOUT)


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    frame = arms_frame(results, NAME)
    panels = {"all languages": [*map(str, SIZES)], "baselines": [*map(alone, TOY)]}
    yield "curves", curves(frame, panels), ABOUT.words["curves"].note
    every = gains_of_seeds(frame)
    if every:
        seeds = [*every.values()][-1]
        yield "gains", _drawn(seeds, quoting=beside_paper(results, NAME)), ABOUT.words["gains"].note


def _drawn(seeds: Sequence[Frame], *, quoting: bool) -> Figure:
    page, (panels,) = grid(1, 2 if quoting else 1, 3.4)
    mean: Frame = sum(seeds[1:], seeds[0]) / len(seeds)
    of_tiers = {size: (range(len(TIERS)), mean.loc[size, [*TIERS]]) for size in mean.index}
    _draw(panels[0], "measured", of_tiers)
    panels[0].set(title="measured, toy languages", ylabel="BLEU over bilingual")
    panels[0].set_xticks(range(len(TIERS)), [f"{tier} tier" for tier in TIERS])
    if quoting:
        points = pd.DataFrame([vars(point) for point in figure(NAME)])
        theirs = {
            str(series): (of_size["x"] + 1, of_size["y"])
            for series, of_size in points.groupby("series", sort=False)
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
