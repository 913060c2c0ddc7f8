"""Figure 1 (arXiv:1811.06965v5): quality against parameters, and a power law through it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, isnan, nan
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import compared
from experiments.compared import Compared, Comparison, over
from experiments.figure1.runs import ABOUT, NAME, NOISE_WIDTHS, SHUFFLED, SIZES_OF, arm_of, arms
from experiments.figure3 import runs as figure3
from experiments.figure3.report import controls
from experiments.learned import at
from experiments.translation import SIZES, size_of
from repro.claims.all_claims import cell_id
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results
from repro.harness.spec import ON_CPU
from repro.paper.numbers import figure
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.style import FIDELITIES, dots, grid, legend, plain_log_ticks
from repro.report.table import Table

SHOWN = Shown(f"{NAME}_laws")
IMAGES, TRANSLATION = f"{NAME}a/exponent", f"{NAME}b/exponent"  # claims


class PowerLaw(NamedTuple):
    """y = a P^b."""

    b: float
    a: float


def power_law(points: Frame) -> PowerLaw:
    """By least squares on the logarithms of `parameters` and `y`; NaN where there is no fit."""
    if len(points) < 2 or not (points["y"] > 0).all():
        return PowerLaw(nan, nan)
    slope, at_one = np.polyfit(np.log(points["parameters"]), np.log(points["y"]), 1)
    return PowerLaw(float(slope), exp(at_one))


def _points(name: str, unit: float) -> Frame:
    points = pd.DataFrame([(unit * point.x, point.y) for point in figure(name)])
    return points.set_axis(["parameters", "y"], axis=1)


# The paper's points: errors in percent, and BLEU.
_ERRORS = _points(f"{NAME}a", 1e6).assign(y=lambda points: 100 * (1 - points["y"]))
_BLEU = _points(f"{NAME}b", 1e9)


def exponent(
    parameters: Frame, arms: Sequence[str], *, accuracy: bool = False
) -> Callable[[Frame], float]:
    """Of the qualities of one seed: by which power of the size these arms get better.

    Losses, and errors in place of accuracies, fall with the size, and BLEU rises.
    """

    def b(quality: Frame) -> float:
        values = quality.loc[[*arms]].mean(axis=1)
        is_loss = bool((values <= 0).all())  # larger qualities are better
        y = -values if is_loss else 100 - values if accuracy else values
        law = power_law(pd.DataFrame({"parameters": parameters[[*arms]], "y": y}))
        return -law.b if is_loss or accuracy else law.b

    return b


def of_images(runs: Frame) -> list[Comparison]:
    """Of the image models of one place."""
    scale = runs["scale"].iloc[0]
    of, parameters = at(scale, SIZES_OF), runs.groupby("arm")["parameters"].first()
    widths = [*of.rates]

    def law(text: str, arms: Sequence[str], claim: str = "") -> Comparison:
        return Comparison(text, arms, exponent(parameters, arms, accuracy=True), claim)

    usual = [arm_of(D) for D in widths]
    found = [law("error = a P^-b", usual, IMAGES)]
    found += [
        law(f"error, after 1/{part} of the updates", [arm_of(D, part) for D in widths])
        for part in of.parts[1:]
    ]
    if len(of.parts) > 2:
        # FLOPs grow with the square of the width.
        equal = [arm_of(D, part) for D, part in zip(widths, of.parts, strict=False)]
        found.append(law("error, at about equal FLOPs", equal))
    if scale in ON_CPU:
        noisy = [arm_of(D, shuffled=SHUFFLED) for D in widths]
        steep, flat = (exponent(parameters, arms, accuracy=True) for arms in (usual, noisy))
        text = "b, minus that with shuffled labels in 30 % of the classes"
        flattened = Comparison(
            text, [*usual, *noisy], lambda q: steep(q) - flat(q), control="something"
        )
        small, large = (arm_of(D, shuffled=1.0) for D in NOISE_WIDTHS)
        found += [flattened, over(large, small, control="no gain")]
    return found


def of_translation(runs: Frame) -> list[Comparison]:
    """Of the models of all languages, whose runs are Figure 3's."""
    parameters = runs.groupby("arm")["parameters"].first()
    sizes = [str(size) for size in SIZES]
    law = Comparison("BLEU = a P^b", sizes, exponent(parameters, sizes), TRANSLATION)
    return [law, *controls()]


def comparisons_of(results: Results) -> dict[str, list[Compared]]:
    found = compared.of_places(results, NAME, arms, of_images, "accuracy")
    texts = compared.of_places(results, figure3.NAME, figure3.arms, of_translation, "bleu")
    for where, every in texts.items():
        found.setdefault(where, []).extend(each for each in every if each.comparison.claim)
    return found


def tables(results: Results) -> list[Table]:
    frame, found = compared.arms_frame(results, NAME), comparisons_of(results)
    quoted = {IMAGES: -power_law(_ERRORS).b, TRANSLATION: power_law(_BLEU).b}
    return [
        compared.comparisons_table(results, f"{NAME}_laws", found, ABOUT, "b", quoted),
        compared.arms_table(results, NAME, frame, ABOUT, parameters="parameters", updates="steps"),
    ]


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> the mean of the exponents of the seeds, or parameters."""
    yield from compared.claims_of(comparisons_of(results))
    for run in runs_frame(results, NAME, task="fit", done=True).to_dict("records"):
        ours, args = run["record"].fit.largest.parameters, run["model_args"]
        claim, about = "table4/parameters", {}
        if run["model"] == "translation":
            claim = cell_id(f"{NAME}b", str(size_of(run["spec"])).replace(" ", ""), "parameters")
            fewer = {"two tables of embeddings": [ours - args["V"] * args["d"]]}
            about = {"setting": "three tables of embeddings", "others": fewer}
        yield claim, Evidence(ours, "counted", (run["id"],), papers_size=True, **about)


def figures(results: Results) -> Iterator[Picture]:
    frame = compared.arms_frame(results, NAME)
    frame = frame[~frame["tuning"]]
    widths = [arm for arm in frame["arm"].unique() if "," not in arm]
    yield "curves", compared.curves(frame, {"images": widths}), {}
    texts = compared.arms_frame(results, figure3.NAME)
    texts = texts[~texts["tuning"] & texts["arm"].isin([str(size) for size in SIZES])]
    halves = {
        "(a) images: error (%)": (frame[frame["arm"].isin(widths)], "metrics.accuracy", _ERRORS),
        "(b) translation: BLEU": (texts, "metrics.bleu", _BLEU),
    }
    halves = {title: half for title, half in halves.items() if len(half[0])}
    if halves:
        yield "sizes", _drawn(halves, beside_paper(results, NAME)), {}


def _drawn(halves: Mapping[str, tuple[Frame, str, Frame]], quoting: bool) -> Figure:
    page, (panels,) = grid(1, len(halves), 3.3)
    for axes, (title, (runs, metric, printed)) in zip(panels, halves.items(), strict=True):
        by_size = compared.main_place(runs).groupby("parameters")[metric]
        means = by_size.mean().rename("y").reset_index()
        if metric == "metrics.accuracy":
            means["y"] = 100 - means["y"]
        _draw(axes, "measured", means)
        if quoting:
            _draw(axes, "quoted", printed)
        axes.set(title=title, xlabel="parameters P", xscale="log", yscale="log")
        plain_log_ticks(axes.yaxis)
    fidelities = ["quoted", "measured"] if quoting else ["measured"]
    legend(page, fidelities, ("power law", "-"), coloured=True)
    return page


def _draw(axes: Axes, fidelity: str, points: Frame) -> None:
    look = dots(fidelity, markersize=4.5, label=fidelity)
    axes.plot(points["parameters"], points["y"], **look)
    law = power_law(points)
    if not isnan(law.b):
        ends = np.array([points["parameters"].min(), points["parameters"].max()])
        axes.plot(ends, law.a * ends**law.b, color=FIDELITIES[fidelity], linewidth=1.1)
