"""Figure 1 (arXiv:1811.06965v5): quality against parameters, and a power law through it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import exp, isnan, log10, nan
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.experiments import compared
from repro.experiments.compared import Gain
from repro.experiments.figure1.runs import ABOUT, NAME, NOISE_WIDTHS, PARTS, SHUFFLED, TRIED, arm_of
from repro.experiments.learned import SIZES
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.text import digits, ranged
from repro.paper.numbers import figure, translation_models
from repro.report.claim import Claim, number
from repro.report.figures import Picture
from repro.report.framed import error_bars, estimated, framed, with_interval
from repro.report.style import FIDELITIES, SOFT, dots, grid
from repro.report.table import Cell, Table

EXHIBIT = "Figure 1, exponents"
FIGURE3, SIZED = "figure3", [str(size) for size in SIZES]  # whose translation models are shown
READS = (FIGURE3,)
IMAGES, FLOPS = "images, D = 8, 12, 16, 24", "images, at about equal FLOPs"
TRANSLATION = "translation, the four sizes of Figure 3"
OF_PARAMETERS, PICTURE = "scaling exponent, ", "of the paper's picture"
# Models -> arms; FLOPs grow with the square of the width.
ARMS = {
    IMAGES: [arm_of(D) for D in TRIED],
    "images, a half of the updates": [arm_of(D, 2) for D in TRIED],
    "images, a quarter of the updates": [arm_of(D, 4) for D in TRIED],
    FLOPS: [arm_of(D, part) for D, part in zip(TRIED, PARTS, strict=False)],
}
# Printed number of parameters -> the unit of its last digit.
UNITS = {400e6: 1e6, 1.3e9: 0.1e9, 3e9: 1e9, 6e9: 1e9}
# How far a name is from its point, in points, where names would overlap; others' is to the right.
AWAY = {"Inception-v3": (-8, 12), "ResNet-152": (8, -27), "ResNeXt-101": (14, -18)}
AWAY |= {"SENet": (14, -9), "NASNet-A": (-14, 3), "AmoebaNet-C (6, 228)": (-14, 17)}
AWAY |= {"AmoebaNet-B (18, 512)": (-2, 21)}
AWAY |= dict.fromkeys(("T(24, 8192, 16)", "T(64, 16384, 32)", "T(1, 128, 4)"), (-6, 8))


def power_law(parameters: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """The b and a of y = a P^b, by least squares on the logarithms; NaN where there is no fit."""
    if len(y) < 2 or min(y) <= 0:
        return nan, nan
    b, at_one = np.polyfit(np.log([*parameters]), np.log([*y]), 1)
    return float(b), exp(at_one)


def exponent(runs: Frame, arms: Sequence[str], top: float) -> Callable[[Frame], float]:
    """Of the qualities of one seed: the exponent with which these arms get better.

    Losses, and errors in place of accuracies, fall with the size. BLEU rises: its `top` is 0.
    """
    sizes = runs.groupby("arm")["parameters"].first() if len(runs) else {}

    def better(of_seed: Frame) -> float:
        values = of_seed.loc[[*arms]].mean(axis=1)
        is_loss = bool((values <= 0).all())  # larger qualities are better
        b, _ = power_law(sizes[[*arms]], -values if is_loss else abs(top - values))
        return -b if is_loss or top else b

    return better


@lru_cache(maxsize=1)
def laws(results: Results) -> dict[str, Gain]:
    """Models -> their exponent."""
    runs, texts = _trained(results)
    found = {
        models: compared.compared(runs, "accuracy", arms, exponent(runs, arms, 100))
        for models, arms in ARMS.items()
    }
    return found | {TRANSLATION: compared.compared(texts, "bleu", SIZED, exponent(texts, SIZED, 0))}


def _controls_of(runs: Frame) -> str:
    """Shuffled labels flatten the law; of labels that are all shuffled no width learns more."""
    usual, noisy = ARMS[IMAGES], [arm_of(D, shuffled=SHUFFLED) for D in TRIED]
    steep, flat = (exponent(runs, arms, 100) for arms in (usual, noisy))
    flattened = compared.compared(
        runs, "accuracy", [*usual, *noisy], lambda of_seed: steep(of_seed) - flat(of_seed)
    )
    small, large = ([arm_of(D, shuffled=1.0)] for D in NOISE_WIDTHS)
    wider = compared.gain(runs, "accuracy", large, small)
    return compared.failing(
        [
            ("the law over that with 30 % shuffled labels", flattened, "be better"),
            ("a wider model on shuffled labels", wider, "not be better"),
        ]
    )


def _printed() -> list[Frame]:
    """Both panels of the paper: names, parameters, and accuracy in percent or BLEU."""
    panels = []
    for name, x, y in ((f"{NAME}a", 1e6, 100), (f"{NAME}b", 1e9, 1)):
        points = [(each.series.replace(",", ", "), x * each.x, y * each.y) for each in figure(name)]
        panels.append(pd.DataFrame(points, columns=["name", "parameters", "y"]))
    return panels


def _trained(results: Results) -> tuple[Frame, Frame]:
    return compared.trained(results, NAME), compared.trained(results, FIGURE3)


def tables(results: Results) -> list[Table]:
    paper = quoted_laws()
    verdicts = {judged.what: judged.verdict for judged in claims(results)}
    lines = []
    for models, found in laws(results).items():
        if found.seeds:
            line = {"models": models, "seeds": found.seeds} | estimated("exponent", found.quality)
            if models == TRANSLATION:
                text = f"{ranged(*found.quality)}, far too large"
                line["exponent"] = Cell(found.quality[0], text)
            verdict = verdicts.get(OF_PARAMETERS + models, nan)
            lines.append(line | {PICTURE: paper.get(models, nan), "verdict": verdict})
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def quoted_laws() -> dict[str, float]:
    """Exponents of the points in the paper's picture; it prints none."""
    images, texts = _printed()
    return {
        IMAGES: -power_law(images["parameters"], 100 - images["y"])[0],
        TRANSLATION: power_law(texts["parameters"], texts["y"])[0],
    }


def claims(results: Results) -> Iterator[Claim]:
    runs, texts = _trained(results)
    found, quoted = laws(results), quoted_laws()
    b, low, high = found[FLOPS].quality
    flops = f"at about equal FLOPs {ranged(b, low, high)}{': larger is worse' * (high < 0)}"
    embeddings = "far too large: most parameters are embeddings, of one size"
    for models, controls, beside in (
        (IMAGES, _controls_of(runs), "" if isnan(low) else flops),
        (TRANSLATION, compared.failing(compared.controls(texts, SIZED[0])), embeddings),
    ):
        what = OF_PARAMETERS + models
        says = f"{digits(quoted[models])}, fitted to a picture"
        yield compared.claim(EXHIBIT, what, found[models], controls, says=says, beside=beside)
    yield from _of_sizes(results)


def _of_sizes(results: Results) -> Iterator[Claim]:
    """Parameters with three tables of embeddings, as ours has, and with two."""
    counted = runs_frame(results, NAME, task="fit", model="translation", done=True)
    found = {}
    for args, record in zip(counted["model_args"], counted["record"], strict=True):
        three = record.fit.largest.parameters
        found[args["L"], args["H"], args["A"]] = (three, three - args["V"] * args["d"])
    for row in translation_models():
        of_size = found.get((row.L, row.H, row.A), ())
        yield Claim(
            "Figure 1, sizes",
            f"parameters of T({row.L}, {row.H}, {row.A})",
            [*map(number, of_size)],
            "counted",
            paper=row.parameters,
            off=min(1.5 * UNITS[row.parameters], 0.1 * row.parameters),
            others="with two tables of embeddings",
        )


def figures(results: Results) -> Iterator[Picture]:
    runs, texts = _trained(results)
    images, translation = _printed()
    halves = {
        "(a) images, accuracy (%)": (_measured(runs, ARMS[IMAGES], "accuracy"), images),
        "(b) translation, BLEU": (_measured(texts, SIZED, "bleu"), translation),
    }
    halves = {title: half for title, half in halves.items() if len(half[0])}
    if halves:
        yield "sizes", _drawn(halves), {}


def _measured(runs: Frame, arms: Sequence[str], metric: str) -> Frame:
    points = select(runs, arm=[*arms]).drop_duplicates("arm").rename(columns={"arm": "name"})
    return with_interval(points, "y", [compared.mean(runs, arm, metric) for arm in points["name"]])


def _drawn(halves: Mapping[str, tuple[Frame, Frame]]) -> Figure:
    """Measured beside quoted, on axes of as many points and as many decades."""
    page, rows = grid(len(halves), 2, 2.9, legend=False)
    for row, (title, points) in zip(rows, halves.items(), strict=True):
        decades = [log10(each["parameters"].max() / each["parameters"].min()) for each in points]
        for axes, fidelity, each in zip(row, ("measured", "quoted"), points, strict=True):
            if "accuracy" in title:  # BLEU does not share an axis, since ours is of a toy language
                axes.sharey(row[0])
            _draw(axes, fidelity, each, 100 if "accuracy" in title else 0)
            middle = (each["parameters"].max() * each["parameters"].min()) ** 0.5
            ends = 10 ** (max(decades) / 2 + 0.4)
            axes.set_xlim(middle / ends, middle * ends)
            axes.set(title=f"{title}: {fidelity}", xlabel="parameters")
        limits = [axes.get_ylim() for axes in row]
        half = max(high - low for low, high in limits) / 2
        for axes, (low, high) in zip(row, limits, strict=True):
            axes.set_ylim((low + high) / 2 - half, (low + high) / 2 + half)
    return page


def _draw(axes: Axes, fidelity: str, points: Frame, top: float) -> None:
    """Points with names and intervals, and the power law through them."""
    axes.set_xscale("log")
    bars = error_bars(points, "y") if "y: low" in points else None
    look = dots(fidelity, markersize=4.5)
    axes.errorbar(points["parameters"], points["y"], bars, capsize=2.5, **look)
    axes.margins(y=0.1)
    for name, x, y in points[["name", "parameters", "y"]].itertuples(index=False):
        away = AWAY.get(name, (6, -7))
        text: dict[str, Any] = {"fontsize": 7, "ha": "left" if away[0] > 0 else "right"}
        text["arrowprops"] = {"arrowstyle": "-", "color": SOFT, "linewidth": 0.6, "shrinkA": 0}
        axes.annotate(name, (x, y), away, textcoords="offset points", va="center", **text)
    b, a = power_law(points["parameters"], abs(top - points["y"]))
    sizes = np.geomspace(points["parameters"].min(), points["parameters"].max())
    axes.plot(sizes, abs(top - a * sizes**b), color=FIDELITIES[fidelity], linewidth=1.1)
