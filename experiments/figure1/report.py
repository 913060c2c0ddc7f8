"""Figure 1 (arXiv:1811.06965v5): quality against parameters, and a power law through it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, isnan, log, nan, sqrt
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import stdtrit

from experiments.figure1.runs import IMAGES, NAME, TRANSLATION
from experiments.learned import metric, parameters
from experiments.translation import size_of
from repro.claims.all_claims import verdict_on
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.paper import figure
from repro.report.compare import beside_paper, matching, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, amount, declared, estimate, place_column, plain, spread
from repro.report.style import FIDELITIES, MARKERS, grid, legend, model_name
from repro.report.table import Table

_TICKS = (0.5, 1, 2, 5, 10, 20, 30, 50, 70, 100)  # of the logarithmic axis of quality


@dataclass(frozen=True)
class Panel:
    """A half of the figure.

    Attributes:
        claim: that it shows something about.
        quality: what is fitted, and its unit.
        grows: whether larger models have more of it; -1 where they have less.
        printed: the paper's points: (parameters, quality).
    """

    title: str
    claim: str
    quality: str
    value: Callable[[Run], float]
    name: Callable[[Run], str]
    grows: int
    printed: list[tuple[float, float]]


def _error(run: Run) -> float:
    return 100 * (1 - metric(run, "accuracy"))


def _bleu(run: Run) -> float:
    return metric(run, "bleu")


def _amoebanet(run: Run) -> str:
    args = run.spec.model_args
    return f"{model_name(run.model)} ({args['L']}, {args['D']})"


PANELS = {
    IMAGES: Panel(
        "(a) images",
        "figure1a/exponent",
        "error (%)",
        _error,
        _amoebanet,
        -1,
        [(1e6 * point.x, 100 * (1 - point.y)) for point in figure("figure1a")],
    ),
    TRANSLATION: Panel(
        "(b) translation",
        "figure1b/exponent",
        "BLEU",
        _bleu,
        lambda run: str(size_of(run.spec)),
        1,
        [(1e9 * point.x, point.y) for point in figure("figure1b")],
    ),
}


@dataclass(frozen=True)
class PowerLaw:
    """quality = a P^(grows x b), by least squares on the logarithms.

    Attributes:
        b: the exponent.
        low: lower end of its 95 % interval by Student's t.
        a: quality of a model of one parameter.
    """

    b: float
    low: float
    high: float
    a: float
    n: int


NO_LAW = PowerLaw(nan, nan, nan, nan, 0)


def power_law(points: list[tuple[float, float]], grows: int) -> PowerLaw:
    """The law through points (parameters, quality); NaN for fewer than three, or a quality of 0."""
    if len(points) < 3 or not all(quality > 0 for _, quality in points):
        return NO_LAW
    x, y = (np.array([log(value) for value in values]) for values in zip(*points, strict=True))
    (xx, xy), (_, yy) = np.cov(x, y, bias=True)
    slope, freedom = xy / xx, len(points) - 2
    error = sqrt((1 - xy**2 / (xx * yy)) * yy / xx / freedom)
    half_width = stdtrit(freedom, 0.975) * error  # Student's t
    b, intercept = grows * float(slope), float(y.mean() - slope * x.mean())
    return PowerLaw(b, b - half_width, b + half_width, exp(intercept), len(points))


@dataclass(frozen=True)
class Fit:
    """The power law of one half of the figure at one place."""

    where: str
    panel: Panel
    runs: list[Run]

    @property
    def points(self) -> list[tuple[float, float]]:
        """(parameters, quality) of every training."""
        return [(parameters(run), self.panel.value(run)) for run in self.runs]

    @property
    def ours(self) -> PowerLaw:
        """Fitted to our trainings."""
        return power_law(self.points, self.panel.grows)

    @property
    def theirs(self) -> PowerLaw:
        return power_law(self.panel.printed, self.panel.grows)

    @property
    def evidence(self) -> Evidence:
        """Our exponent, for the claim `panel.claim`."""
        runs = tuple(run.id for run in self.runs)
        return Evidence(self.ours.b, "measured", runs, self.ours.low, self.ours.high)

    @property
    def verdict(self) -> str:
        """The verdict on the claim that larger models are better."""
        return verdict_on(self.panel.claim, self.evidence)


@dataclass(frozen=True)
class Size:
    where: str
    panel: Panel
    runs: list[Run]

    @property
    def values(self) -> list[float]:
        return [self.panel.value(run) for run in self.runs]


SHOWN = Shown(f"{NAME}_laws")


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [sizes(results), laws(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[f"{NAME}_laws"]
    images, text = ({"quality": _formula(PANELS[group])} for group in (IMAGES, TRANSLATION))
    return (
        f"The exponent of quality in the parameters is {table.text('measured b', **images)} for "
        f"images and {table.text('measured b', **text)} for translation; the paper's points give "
        f"{table.number('quoted b, our fit', **images)} and "
        f"{table.number('quoted b, our fit', **text)}."
    )


def fits(results: Results) -> list[Fit]:
    done = rows_of(results, experiment=NAME, status="done")
    made = []
    for place in dict.fromkeys(run.place for run in done):
        runs = matching(done, place=place)
        for group, panel in PANELS.items():
            of_panel = [run for run in runs if run.group.startswith(group)]
            if of_panel:
                made.append(Fit(where(results, runs[0]), panel, of_panel))
    return made


def sizes(results: Results) -> Table:
    lines = []
    for fit in fits(results):
        for counted in sorted({parameters(run) for run in fit.runs}):
            runs = [run for run in fit.runs if parameters(run) == counted]
            lines.append(Size(fit.where, fit.panel, runs))
    columns: list[Column[Size]] = [
        *place_column(lines, lambda size: size.where),
        Column("quality", lambda size: plain(size.panel.quality)),
        Column("model", lambda size: plain(size.panel.name(size.runs[0]))),
        Column("parameters", _thousands),
        Column("seeds", lambda size: plain(len(size.runs))),
        Column(("measured", "mean"), lambda size: amount(fmean(size.values), 1)),
        Column(("measured", "lowest"), lambda size: amount(min(size.values), 1)),
        Column(("measured", "highest"), lambda size: amount(max(size.values), 1)),
    ]
    note = (
        "Error on test images, and mean BLEU over nine toy languages: mean, lowest and highest of "
        "the seeds, which are too few for an interval. Digits and toy languages stand for ImageNet "
        "and 102 languages, and all sizes have the same few updates, so they cannot show the "
        "paper's numbers."
    )
    return declared(NAME, "Quality for each model size", note, lines, columns, NAME)


def _thousands(size: Size) -> Cell:
    counted = parameters(size.runs[0])
    return Cell(counted, f"{counted / 1e3:.0f}k" if counted < 1e6 else f"{counted / 1e6:.2f}M")


def laws(results: Results) -> Table:
    """The exponents of the power laws, ours beside that of the paper's points."""
    lines = fits(results)
    columns: list[Column[Fit]] = [
        *place_column(lines, lambda fit: fit.where),
        Column("quality", lambda fit: plain(_formula(fit.panel))),
        Column("n", lambda fit: plain(len(fit.runs))),
        spread(("measured", "b"), lambda fit: _exponent(fit.ours)),
    ]
    quoting = beside_paper(results, NAME)
    if quoting:
        columns.append(
            Column(("quoted", "points, digitised"), lambda fit: plain(len(fit.panel.printed)))
        )
        columns.append(spread(("quoted", "b, our fit"), lambda fit: _exponent(fit.theirs)))
        columns.append(Column("verdict", lambda fit: plain(fit.verdict)))
    note = "Least squares on the logarithms over n trainings, with a 95 % interval by Student's t."
    if quoting:
        note += (
            " The paper fits nothing, so its points are read off its picture and fitted alike; our "
            "small sizes stand for the trend alone, and no exponent carries over to the paper's."
        )
    title = "Power laws in the parameters P"
    return declared(f"{NAME}_laws", title, note, lines, columns, NAME)


def _formula(panel: Panel) -> str:
    sign = "-" if panel.grows < 0 else ""
    return f"{panel.quality} = a P^{sign}b"


def _exponent(law: PowerLaw) -> Cell:
    return estimate((law.b, law.low, law.high), ".3f")


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    caption = (
        "Error on images and BLEU against parameters, with a power law through ours and one "
        "through the paper's points. Data and models of the two differ, so the two lines are not "
        "parts of one."
    )
    yield "sizes", quality(results), caption


def quality(results: Results) -> Figure | None:
    """Two panels; of several places the last one is drawn."""
    every = fits(results)
    every = [fit for fit in every if fit.where == every[-1].where]
    if not every:
        return None
    quoting = beside_paper(results, NAME)
    drawn, (panels,) = grid(1, len(every), 3.3)
    for axes, fit in zip(panels, every, strict=True):
        _points(axes, "measured", fit.points, fit.ours, fit.panel.grows)
        if quoting:
            _points(axes, "quoted", fit.panel.printed, fit.theirs, fit.panel.grows)
        axes.set_xscale("log")
        axes.set_yscale("log")
        bottom, top = axes.get_ylim()
        shown = [value for value in _TICKS if bottom <= value <= top]
        axes.set_yticks(shown, [f"{value:g}" for value in shown])
        axes.yaxis.minorticks_off()
        axes.set(title=fit.panel.title, xlabel="parameters P", ylabel=fit.panel.quality)
    fidelities = ["quoted", "measured"] if quoting else ["measured"]
    legend(drawn, fidelities, ("power law", "-"), coloured=True)
    return drawn


def _points(
    axes: Axes, fidelity: str, points: list[tuple[float, float]], law: PowerLaw, grows: int
) -> None:
    colour = FIDELITIES[fidelity]
    Ps = sorted(P for P, _ in points)
    axes.plot(
        [P for P, _ in points],
        [value for _, value in points],
        MARKERS[fidelity],
        color=colour,
        markersize=4.5,
        linestyle="",
        label=fidelity,
    )
    if not isnan(law.b):
        ends = [Ps[0], Ps[-1]]
        axes.plot(ends, [law.a * P ** (grows * law.b) for P in ends], color=colour, linewidth=1.1)
