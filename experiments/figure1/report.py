"""Figure 1 (arXiv:1811.06965v5): quality against parameters, and a power law through it."""

from collections.abc import Iterator
from math import exp, isnan, nan, sqrt
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from experiments.figure1.runs import ABOUT, IMAGES, NAME, TRANSLATION
from experiments.translation import size_of
from repro.claims.all_claims import cell_id, verdict_on
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results, Run
from repro.harness.spec import RunSpec
from repro.harness.statistics import mean_interval
from repro.paper.numbers import figure
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.framed import Form, estimated, framed
from repro.report.style import FIDELITIES, dots, grid, legend, model_name
from repro.report.table import Table

_TICKS = (0.5, 1, 2, 5, 10, 20, 30, 50, 70, 100)  # of the logarithmic axis of quality
SHOWN = Shown(f"{NAME}_laws")


class Panel(NamedTuple):
    """A half of the figure."""

    title: str
    claim: str
    quality: str  # what is fitted, and its unit
    grows: int  # 1 where larger models have more of it, -1 where they have less
    printed: Frame  # parameters and quality of the paper's points

    @property
    def formula(self) -> str:
        return f"{self.quality} = a P^{'-' if self.grows < 0 else ''}b"


def _points(name: str, unit: float) -> Frame:
    points = pd.DataFrame([(unit * point.x, point.y) for point in figure(name)])
    return points.set_axis(["parameters", "quality"], axis=1)


_ERRORS = _points("figure1a", 1e6).assign(quality=lambda points: 100 * (1 - points["quality"]))
_BLEU = _points("figure1b", 1e9)
PANELS = {
    IMAGES: Panel("(a) images", "figure1a/exponent", "error (%)", -1, _ERRORS),
    TRANSLATION: Panel("(b) translation", "figure1b/exponent", "BLEU", 1, _BLEU),
}


class PowerLaw(NamedTuple):
    """quality = a P^(grows x b), with the ends of the 95 % interval of b."""

    b: float
    low: float
    high: float
    a: float


def power_law(points: Frame, grows: int) -> PowerLaw:
    """By least squares on the logarithms; NaN for fewer than three, or for a quality of 0."""
    if len(points) < 3 or not (points["quality"] > 0).all():
        return PowerLaw(nan, nan, nan, nan)
    x, y = np.log(points["parameters"]), np.log(points["quality"])
    (xx, xy), (_, yy) = np.cov(x, y, bias=True)
    slope, freedom = xy / xx, len(points) - 2
    error = sqrt((1 - xy**2 / (xx * yy)) * yy / xx / freedom)
    half_width = stdtrit(freedom, 0.975) * error  # Student's t
    b = grows * float(slope)
    return PowerLaw(b, b - half_width, b + half_width, exp(y.mean() - slope * x.mean()))


def tables(results: Results) -> list[Table]:
    return [sizes(results), laws(results)]


def halves(results: Results) -> Iterator[tuple[str, Panel, Frame]]:
    frame = runs_frame(results, NAME, task="learn", done=True)
    metrics = frame.reindex(columns=["metrics.accuracy", "metrics.bleu"])
    frame["quality"] = metrics["metrics.bleu"].fillna(100 * (1 - metrics["metrics.accuracy"]))
    frame["half"] = frame["group"].str.split("-").str[0]
    for (where, half), runs in frame.groupby(["where", "half"], sort=False):
        yield where, PANELS[half], runs


def _model(spec: RunSpec) -> str:
    args = spec.model_args
    if spec.model == "translation":
        return str(size_of(spec))
    return f"{model_name(spec.model)} ({args['L']}, {args['D']})"


def sizes(results: Results) -> Table:
    lines = []
    for where, panel, runs in halves(results):
        for parameters, seeds in runs.groupby("parameters"):
            line: dict[str, Any] = {"where": where, "quality": panel.quality}
            line |= {"model": _model(seeds["spec"].iloc[0]), "parameters": float(parameters)}
            mean, lowest, highest = seeds["quality"].agg(["mean", "min", "max"])
            line |= {"seeds": len(seeds), "measured mean": mean, "measured lowest": lowest}
            lines.append(line | {"measured highest": highest})
    measured = ("measured mean", "measured lowest", "measured highest")
    forms = {"parameters": _thousands, **dict.fromkeys(measured, ".1f")}
    return framed(results, NAME, pd.DataFrame(lines), ABOUT, forms=forms)


def _thousands(count: float) -> str:
    return f"{count / 1e3:.0f}k" if count < 1e6 else f"{count / 1e6:.2f}M"


def laws(results: Results) -> Table:
    lines = []
    for where, panel, runs in halves(results):
        ours, theirs = _evidence(panel, runs), power_law(panel.printed, panel.grows)
        line: dict[str, Any] = {"where": where, "quality": panel.formula}
        line["seeds"] = runs["seed"].nunique()
        line |= estimated("measured b", (ours.value, ours.low, ours.high))
        line["quoted points, digitised"] = len(panel.printed)
        line |= estimated("quoted b, our fit", theirs[:3])
        line["verdict"] = verdict_on(panel.claim, ours)
        lines.append(line)
    forms: dict[str, Form] = dict.fromkeys(("measured b", "quoted b, our fit"), ".3f")
    return framed(results, f"{NAME}_laws", pd.DataFrame(lines), ABOUT, forms=forms)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Claim id -> the mean of the exponents that are fitted to each seed."""
    for _, panel, runs in halves(results):
        yield panel.claim, _evidence(panel, runs)
    for run in runs_frame(results, NAME, task="fit", done=True).to_dict("records"):
        ours, args = run["record"].fit.largest.parameters, run["model_args"]
        at, about = "table4/parameters", {}
        if run["model"] == "translation":
            at = cell_id(f"{NAME}b", str(size_of(run["spec"])).replace(" ", ""), "parameters")
            fewer = {"two tables of embeddings": [ours - args["V"] * args["d"]]}
            about = {"setting": "three tables of embeddings", "others": fewer}
        yield at, Evidence(ours, "counted", (run["id"],), papers_size=True, **about)


def _evidence(panel: Panel, runs: Frame) -> Evidence:
    exponents = [power_law(seed, panel.grows).b for _, seed in runs.groupby("seed")]
    mean, low, high = mean_interval(exponents)
    return Evidence(mean, "measured", tuple(runs["id"]), low, high)


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    drawn = list(halves(results))
    drawn = [half for half in drawn if half[0] == drawn[-1][0]]
    if not drawn:
        return
    quoting = beside_paper(results, NAME)
    page, (panels,) = grid(1, len(drawn), 3.3)
    for axes, (_, panel, runs) in zip(panels, drawn, strict=True):
        _draw(axes, "measured", runs, panel.grows)
        if quoting:
            _draw(axes, "quoted", panel.printed, panel.grows)
        axes.set_xscale("log")
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        shown = [value for value in _TICKS if bottom <= value <= top]
        axes.set_yticks(shown, [f"{value:g}" for value in shown])
        axes.yaxis.minorticks_off()
        axes.set(title=panel.title, xlabel="parameters P", ylabel=panel.quality)
    fidelities = ["quoted", "measured"] if quoting else ["measured"]
    legend(page, fidelities, ("power law", "-"), coloured=True)
    yield "sizes", page, ABOUT.caption("sizes")


def _draw(axes: Axes, fidelity: str, points: Frame, grows: int) -> None:
    colour, law = FIDELITIES[fidelity], power_law(points, grows)
    look = dots(fidelity, markersize=4.5, label=fidelity)
    axes.plot(points["parameters"], points["quality"], **look)
    if not isnan(law.b):
        ends = np.array([points["parameters"].min(), points["parameters"].max()])
        axes.plot(ends, law.a * ends ** (grows * law.b), color=colour, linewidth=1.1)
